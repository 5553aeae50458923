"""docs/examples/plugin-package: installed as its README says, its plugins steer a request."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from pointsman.docs import DOCS
from pointsman.plugins import describe
from services.picker.pipeline import build
from services.picker.request import Route
from services.picker.state.view import View
from shared.attributes import WAITING_QUEUE_SIZE
from shared.config import load
from shared.plugin import Plugin, Registry
from tests.unit.services.picker.world import NOW, endpoint, pool, report, request

EXAMPLE = DOCS / "examples" / "plugin-package"
PACKAGE = "battery_plugins"
PIP = ("--no-deps", "--no-build-isolation", "--no-index", "--disable-pip-version-check", "--quiet")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, built from a copy: a build leaves files beside its source."""
    source, target = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("site")
    shutil.copytree(EXAMPLE, source)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", *PIP, "--target", target, source], check=True, capture_output=True
    )
    return target


@pytest.fixture
def registry(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """The installed plugins, found by their entry points."""
    monkeypatch.syspath_prepend(site)
    yield Registry.installed()
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


def servers() -> View:
    """The server on mains power is the busiest; of the two batteries one is low."""
    view = pool(
        endpoint("a1", power="battery", charge="80"),
        endpoint("a2", power="battery", charge="10"),
        endpoint("a3", power="mains"),
    )
    report(view, {WAITING_QUEUE_SIZE: [5, 0, 9]})
    return view


def picked(registry: Registry, view: View, weight: float) -> list[str]:
    document = (EXAMPLE / "config.yaml").read_text(encoding="utf-8").replace("weight: 3", f"weight: {weight}")
    made = build(load(document, registry), np.random.default_rng(1), lambda: 0.0).director.decide(request(), view, NOW)
    assert isinstance(made.outcome, Route), made.outcome
    assert not made.failures
    return [made.layout.endpoints[row].id for row in made.picked]


def test_the_package_is_found_by_its_entry_point(registry: Registry, site: Path) -> None:
    found: list[type[Plugin]] = [kind for kind in registry if kind.__module__.startswith(PACKAGE)]
    assert [kind.TYPE for kind in found] == ["mains-power-scorer", "low-battery-filter"]
    assert [describe(kind).package for kind in found] == [PACKAGE] * 2
    module = sys.modules[PACKAGE].__file__
    assert module is not None
    assert Path(module).is_relative_to(site)
    assert registry.failures == ()


def test_its_plugins_steer_a_request(registry: Registry) -> None:
    view = servers()
    assert picked(registry, view, weight=3) == ["a3"]
    assert picked(registry, view, weight=0) == ["a1"]  # a2 has the shortest queue, and too little charge
    view.upsert("pool.endpoint.a2", replace(view.endpoints["a2"], labels={"power": "mains"}))
    assert picked(registry, view, weight=3) == ["a2"]
    view.upsert("pool.endpoint.a2", replace(view.endpoints["a2"], labels={"charge": "nonsense"}))
    assert picked(registry, view, weight=3) == ["a2"]


def test_where_all_batteries_are_low_all_servers_stay(registry: Registry) -> None:
    view = pool(endpoint("a1", charge="3"), endpoint("a2", charge="2"))
    report(view, {WAITING_QUEUE_SIZE: [5, 0]})
    assert picked(registry, view, weight=3) == ["a2"]
