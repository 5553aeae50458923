"""The parts of docs/compatibility.md that come from the code."""

from pathlib import Path

import pytest

from pointsman.compatibility_page import compatibility_page, fill, load_documents, published
from shared.config.originals import ABSENT
from shared.plugin import Registry

REGISTRY = Registry.installed()
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
PAGE = (
    "by hand\n<!-- begin absent types: `make docs` writes this -->\nold\n<!-- end absent types -->\nbetween\n"
    "<!-- begin published documents: `make docs` writes this -->\nold table\n<!-- end published documents -->\nend\n"
)
DOCUMENTS = {
    "good.yaml": ("ok", "queue-scorer"),
    "alpha.yaml": ("ok+alpha", "dcgm-data-source dcgm-extractor"),
    "absent.yaml": ("ok", "queue-scorer latency-scorer p2p-source-producer"),
    "wrong.yaml": ("ok", "queue-scorer"),
    "bad.yaml": ("error", "queue-scorer"),
}


@pytest.fixture
def fixtures(tmp_path: Path) -> Path:
    """A folder of published documents."""
    folder = tmp_path / "configs"
    folder.mkdir()
    lines = ["file\texpected in NEW\tplugin types"]
    for file, (expected, types) in DOCUMENTS.items():
        lines.append(f"{file}\t{expected}\t{types}")
        text = HEAD + "".join(f"- type: {name}\n" for name in types.split())
        broken = "schedulingProfiles: [{name: a, plugins: [{pluginRef: nobody}]}]\n"
        (folder / file).write_text(text + (broken if file in ("wrong.yaml", "bad.yaml") else ""))
    (folder / "INDEX.tsv").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_a_document_loads_or_names_the_types_that_are_missing_and_what_else_is_wrong(fixtures: Path) -> None:
    judged = {
        load_document.file: (load_document.loads, load_document.missing, load_document.other)
        for load_document in load_documents(fixtures / "configs", REGISTRY)
    }
    nobody = ("schedulingProfiles[0].plugins[0].pluginRef: 'nobody' is no plugin's name",)
    assert judged == {
        "good.yaml": (True, (), ()),
        "alpha.yaml": (True, (), ()),
        "absent.yaml": (False, ("latency-scorer", "p2p-source-producer"), ()),
        "wrong.yaml": (False, (), nobody),
        "bad.yaml": (False, (), nobody),
    }


def test_the_table_says_what_is_made_of_each_there_and_here(fixtures: Path) -> None:
    first, _, _, _, *rows = published(load_documents(fixtures / "configs", REGISTRY)).splitlines()
    assert first == (
        "Of 4 documents that the Go original loads, 2 load here and 2 are refused; "
        "1 of 1 that it refuses are refused here too."
    )
    assert rows == [
        "| `good.yaml` | loads | loads | – |",
        "| `alpha.yaml` | loads with experimental plugins | loads with experimental plugins | – |",
        "| `absent.yaml` | loads | refused | `latency-scorer`, `p2p-source-producer` |",
        "| `wrong.yaml` | loads | refused | schedulingProfiles[0].plugins[0].pluginRef: 'nobody' is no plugin's name |",
        "| `bad.yaml` | refused | refused | – |",
    ]


def test_only_what_stands_between_the_comments_is_made_anew(fixtures: Path) -> None:
    page = compatibility_page(PAGE, str(fixtures), REGISTRY)
    assert page.startswith("by hand\n<!-- begin absent types")
    assert page.endswith("<!-- end published documents -->\nend\n")
    assert "\nbetween\n" in page
    assert "\nold" not in page
    assert "`absent.yaml`" in page
    assert all(f"`{name}`" in page for types in ABSENT.values() for name in types)
    assert compatibility_page(page, str(fixtures), REGISTRY) == page


def test_without_the_documents_their_table_stays_as_it_is() -> None:
    assert "\nold table\n" in compatibility_page(PAGE, "", REGISTRY)


@pytest.mark.parametrize("page", ["", PAGE.replace("<!-- end absent types -->\n", "")])
def test_a_page_without_the_comments_is_an_error(page: str) -> None:
    with pytest.raises(ValueError, match="no part 'absent types'"):
        fill(page, "absent types", "")
