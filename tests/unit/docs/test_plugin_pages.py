"""docs/plugins/ has a page for every plugin type that is installed, and each page says what the code says."""

import re
from typing import Any

import pytest
from msgspec import NODEFAULT, Struct, structs

from pointsman.docs import DOCS
from shared.config import load
from shared.plugin import Plugin, Registry, Stability, Tier

PAGES = DOCS / "plugins"
REGISTRY = Registry.installed()
TYPES = sorted(REGISTRY, key=lambda kind: kind.TYPE)
SECTIONS = ["What it does", "Formula", "Inputs", "Parameters", "Example"]
DIFFERENCES = "Unlike the Go original"
NAME = re.compile(r"`(\w+)`")

every_type = pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.TYPE)


def page(kind: type[Plugin]) -> str:
    return (PAGES / f"{kind.TYPE}.md").read_text(encoding="utf-8")


def sections(kind: type[Plugin]) -> dict[str, str]:
    """A page's sections by their titles, in order."""
    _, *parts = re.split(r"^## (.*)\n", page(kind), flags=re.MULTILINE)
    return dict(zip(parts[::2], parts[1::2], strict=True))


def defaults(kind: type[Plugin]) -> dict[str, str]:
    """The parameters that the page's table has, each with what stands under `default`."""
    found: dict[str, str] = {}
    for line in sections(kind)["Parameters"].splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) > 2 and cells[0].startswith("`"):
            for name in NAME.findall(cells[0]):
                found.setdefault(name, cells[1])
    return found


def shown(default: Any) -> str | None:
    """A default as a page shows it; None where the page has words for what happens without a value."""
    if default is NODEFAULT:
        return "required"
    if default is None or default in ("", (), {}):
        return None
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, float) and default.is_integer():
        return f"`{int(default)}`"
    return f"`{default}`"


def fields(parameters: type[Struct]) -> dict[str, Any]:
    return {
        field.encode_name: {} if field.default_factory is dict else field.default
        for field in structs.fields(parameters)
    }


@every_type
def test_a_page_is_named_after_its_type_and_says_where_it_runs_and_what_it_is(kind: type[Plugin]) -> None:
    title, _, runs = page(kind).splitlines()[:3]
    assert title == f"# {kind.TYPE}"
    tiers = " and ".join(tier for tier in Tier if tier in (kind.TIERS or {kind.TIER}))
    assert runs.startswith(f"Runs in: {tiers}. Role")
    for role in kind.ROLES:
        assert role in runs.lower()
    for alias in kind.ALIASES:
        assert f"`{alias}`" in runs


@every_type
def test_every_page_has_the_same_sections_none_of_them_empty(kind: type[Plugin]) -> None:
    found = sections(kind)
    assert list(found) in (SECTIONS, [*SECTIONS, DIFFERENCES])
    assert all(text.strip() for text in found.values())


@every_type
def test_every_parameter_is_on_the_page_with_its_default(kind: type[Plugin]) -> None:
    table = defaults(kind)
    for name, default in fields(kind.Parameters).items():
        expected = shown(default)
        if expected is not None:
            assert table.get(name) == expected, name
        else:
            assert f"`{name}`" in sections(kind)["Parameters"], name


@every_type
def test_a_page_has_no_parameter_that_the_type_doesnt_have(kind: type[Plugin]) -> None:
    text = sections(kind)["Parameters"]
    known = fields(kind.Parameters)
    first_table = text.partition("\n\n")[0]
    named = [
        name for line in first_table.splitlines() if line.startswith("| `") for name in NAME.findall(line.split("|")[1])
    ]
    assert set(named) <= known.keys()
    assert named or text.strip() == "None."


@every_type
def test_the_example_of_a_page_loads_and_runs_the_type(kind: type[Plugin]) -> None:
    examples = re.findall(r"```yaml\n(.*?)```", sections(kind)["Example"], flags=re.DOTALL)
    assert len(examples) == 1
    alpha = kind.STABILITY is Stability.ALPHA
    config = load(examples[0], REGISTRY, f"{kind.TYPE}.md", allow_experimental=alpha)
    assert any(spec.kind is kind and not spec.injected for spec in config.plugins.values())
    assert not config.warnings
    assert ("--allow-experimental-plugins" in page(kind).splitlines()[2]) == alpha


def test_the_index_leads_to_every_page_and_to_no_other() -> None:
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w-]+)\.md\)", index))
    assert linked == {kind.TYPE for kind in TYPES}
    assert {path.stem for path in PAGES.glob("*.md")} == linked | {"README"}
