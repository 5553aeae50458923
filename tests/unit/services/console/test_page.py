"""The page's files: complete, of this origin, and without anything that parses HTML."""

import re
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest

from services.console.assets import TYPES, read_assets

ASSETS = read_assets()
SCRIPTS = {name: asset.content.decode() for name, asset in ASSETS.items() if name.endswith(".js")}
ROOT = Path(__file__).parents[4]


def test_all_files_are_served_and_packaged() -> None:
    folder = files("services.console").joinpath("page")
    assert {entry.name for entry in folder.iterdir()} == ASSETS.keys()
    assert all(name.rpartition(".")[2] in TYPES for name in ASSETS)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["setuptools"]["package-data"]["services.console"] == ["page/*"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_import_what_is_there(name: str) -> None:
    for wanted, module in re.findall(r'import \{([^}]+)\} from "\./([^"]+)"', SCRIPTS[name]):
        for word in wanted.split(","):
            assert re.search(rf"export (const|class|function) {word.strip()}\b", SCRIPTS[module]), (name, word)


@pytest.mark.parametrize("name", ASSETS)
def test_nothing_comes_from_elsewhere_and_nothing_parses_html(name: str) -> None:
    text = ASSETS[name].content.decode().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//[a-z]+\.[a-z]+/|@import|url\(", text)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|\beval\b", text)
