"""CONTRIBUTING's plugins work as they stand: installed as a package's, configured, and used for a decision."""

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from pointsman.docs import ROOT
from services.picker.pipeline import build
from services.picker.request import Route
from shared.attributes import CACHE_BLOCK_SIZE
from shared.config import load
from shared.config.problems import Invalid
from shared.model import Endpoint
from shared.plugin import GROUP, Registry
from tests.unit.services.picker.world import NOW, pool, report, request

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The page's blocks of code in this language, without the indentation of a list."""
    found = re.finditer(rf"^( *)```{language}\n(.*?)^\1```$", PAGE, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{item[1]}", "", item[2], flags=re.MULTILINE) for item in found]


PLUGIN, TEST, IMPORTS, SOURCE = blocks("python")
FROM_ITS_MODULE = re.compile(r"^from (services|shared)\..*\n", re.MULTILINE)
(CONFIGURATION,) = blocks("yaml")
(PROJECT,) = blocks("toml")
((NAME, VALUE),) = tomllib.loads(PROJECT)["project"]["entry-points"][GROUP].items()
PACKAGE, _, MODULE = VALUE.partition(":")[0].partition(".")


def imported(line: str) -> list[str]:
    return re.findall(r"\w+", line.partition(" import ")[2])


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The plugin's module in a package that can be imported; the full name of the module."""
    folder = tmp_path / PACKAGE
    folder.mkdir()
    (folder / "__init__.py").touch()
    names = {name for line in FROM_ITS_MODULE.finditer(PLUGIN) for name in imported(line[0])}
    assert names == set(imported(IMPORTS))
    code = FROM_ITS_MODULE.sub("", FROM_ITS_MODULE.sub(IMPORTS, PLUGIN, 1))
    (folder / f"{MODULE}.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield (name := f"{PACKAGE}.{MODULE}")
    for module in (PACKAGE, name):
        sys.modules.pop(module, None)


@pytest.fixture
def registry(package: str) -> Registry:
    """All installed plugins, and the example by its entry point."""
    found = Registry.of([EntryPoint(NAME, VALUE, GROUP)])
    assert found.failures == ()
    installed = Registry.installed()
    for kind in found:
        installed.add(kind)
    return installed


def test_the_example_decides_by_its_parameters(registry: Registry) -> None:
    config = load(CONFIGURATION, registry)
    assert not config.warnings
    view = pool("large", "small", "middle")
    sizes = {"large": 128.0, "middle": 40.0, "small": 16.0}
    report(view, {CACHE_BLOCK_SIZE: [sizes[endpoint.id] for endpoint in view.layout.endpoints]})
    decision = build(config, np.random.default_rng(1), lambda: 0.0).director.decide(request(), view, NOW)
    assert isinstance(decision.outcome, Route)
    assert decision.layout.endpoints[decision.picked[0]].id == "small"
    scored = decision.explain()["profiles"]["default"]["endpoints"]
    scores = {name: endpoint["scores"]["small-blocks-scorer"]["score"] for name, endpoint in scored.items()}
    assert scores == {"large": 0, "middle": 0.5, "small": 1}


def test_a_wrong_parameter_is_named_by_its_path(registry: Registry) -> None:
    with pytest.raises(Invalid) as caught:
        load(CONFIGURATION.replace("worst: 64", "worst: 8"), registry)
    (problem,) = caught.value.problems
    assert problem.path.startswith("plugins[0].parameters")
    assert "worst: 8 is not above best, 16" in problem.message


def test_without_the_package_the_configuration_is_refused() -> None:
    with pytest.raises(Invalid, match="'small-blocks-scorer' is no plugin type that is installed"):
        load(CONFIGURATION, Registry.installed())


def test_the_example_of_a_test_passes(package: str) -> None:
    module = ModuleType("example")
    code = TEST.replace("services.picker.scheduling.scorers.small_blocks", package)
    exec(compile(code, "CONTRIBUTING.md", "exec"), module.__dict__)
    tests = [var for name, var in vars(module).items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


class Pages:
    """An HTTP client that finds these pages."""

    def __init__(self, pages: dict[str, bytes]) -> None:
        self.pages = pages

    async def get(self, url: Any, tls: bool) -> bytes:
        return self.pages[str(url)]


class Takes:
    """A binding that keeps what it is given."""

    def take(self, page: int) -> None:
        self.page = page


async def test_the_example_of_a_source_asks_twice_and_gives_its_bindings_the_sum() -> None:
    module = ModuleType("example")
    exec(compile(SOURCE, "CONTRIBUTING.md", "exec"), module.__dict__)
    source, binding = module.QueueDepthSource("queues"), Takes()
    endpoint = Endpoint(id="a", name="a", address="10.0.0.1", port=8000)
    http = Pages({"http://10.0.0.1:8000/queue/1": b"3", "http://10.0.0.1:8000/queue/2": b"4"})
    await source.read(await source.poll(endpoint, http), [binding])
    assert binding.page == 7
