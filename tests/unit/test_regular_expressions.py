"""No regular expression of ours takes more than linear time, whatever it reads."""

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.backtracking import is_superlinear

ROOT = Path(__file__).parents[2]
FILES = sorted(path for folder in ("services", "shared", "pointsman") for path in (ROOT / folder).rglob("*.py"))
CHECKED = {"shared/config/decode.py": "info.pattern"}
"""Where an expression is given from elsewhere: those of `Meta` annotations, which are checked here."""


class Uses(ast.NodeVisitor):
    """The expressions of a file: how those with names are used, those without a name, those of annotations."""

    def __init__(self, file: Path) -> None:
        self.path = str(file.relative_to(ROOT))
        self.named: dict[str, set[str]] = {}
        """Methods by name; empty for one that is only passed on."""
        self.others: list[tuple[str, re.Pattern[Any]]] = []
        self.unknown: list[str] = []
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in tree.body:
            match node:
                case ast.Assign(
                    targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute(attr="compile") as func)
                ):
                    if ast.unparse(func) == "re.compile":
                        self.named[name] = set()
                        node.value = ast.Constant(None)
        self.visit(tree)

    def visit_Call(self, node: ast.Call) -> None:
        match node.func:
            case ast.Attribute(value=ast.Name(id="re"), attr=method) if method != "escape":
                self._take(node.args[0], method)
            case ast.Name(id="Meta"):
                for keyword in node.keywords:
                    if keyword.arg == "pattern":
                        self._take(keyword.value, "search")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        match node.value:
            case ast.Name(id=name) if name in self.named:
                self.named[name].add(node.attr)
        self.generic_visit(node)

    def _take(self, node: ast.expr, method: str) -> None:
        try:
            self.others.append((method, re.compile(ast.literal_eval(node))))
        except ValueError:
            if CHECKED.get(self.path) != ast.unparse(node):
                self.unknown.append(ast.unparse(node))


def expressions() -> dict[str, tuple[re.Pattern[Any], set[str]]]:
    """All, by where they are, with the methods that are called."""
    found: dict[str, tuple[re.Pattern[Any], set[str]]] = {}
    for file in FILES:
        if b"import re\n" not in (text := file.read_bytes()) and b"pattern=" not in text:
            continue
        uses = Uses(file)
        assert not uses.unknown, f"{uses.path}: give {uses.unknown} a name at the top of the module"
        module = uses.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name, methods in uses.named.items():
            found[f"{module}.{name}"] = (getattr(importlib.import_module(module), name), methods)
        for method, pattern in uses.others:
            found[f"{module}: {pattern.pattern!r}"] = (pattern, {method})
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items():
        for tag, pattern in resolvers:
            found[f"yaml {tag} {first!r}"] = (pattern, {"match"})
    return found


EXPRESSIONS = expressions()


def test_the_expressions_are_found() -> None:
    assert len(EXPRESSIONS) > 40
    assert "services.collector.page.scan._SAMPLE" in EXPRESSIONS


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_takes_linear_time(name: str) -> None:
    pattern, methods = EXPRESSIONS[name]
    anywhere = not methods or not methods <= {"match", "fullmatch"}
    assert not is_superlinear(pattern, searched=anywhere, whole="fullmatch" in methods)


@pytest.mark.parametrize(
    ("expression", "searched", "superlinear"),
    [
        (r"a*b", False, False),
        (r"a*b", True, True),
        (r"a*", True, False),
        (r"a*(?:ba*)*", True, False),
        (r"^a*b", True, False),
        (r"a*$", True, True),
        (r"a*a*b", False, True),
        (r"a*[^b]*c", False, True),
        (r"a*b?a*c", False, True),
        (r"a*ba*c", False, False),
        (r"(a+)+b", False, True),
        (r"(a|b)*c", False, False),
        (r"(ab|a|b)*c", False, True),
        (r"(ab|a)*b?c", False, False),
        (r"(.*)x(.*)y", False, True),
        (r"([^x]*)x([^y]*)y", False, False),
        (r"[0-9]+\.?[0-9]*e", False, True),
        (r"[0-9]+(\.[0-9]*)?e", False, False),
        (r'"[^"\\]*(?:\\.[^"\\]*)*"', False, False),
        (r'"(?:[^"]|\\.)*"', False, True),
        (r"-----\s*(\S+)\s*-{3,}END", False, True),
        (r"[ \t]*(.*?)[ \t]*c", False, True),
        (r"a{1,9}a{1,9}b", False, False),
    ],
)
def test_what_takes_more_is_seen(expression: str, searched: bool, superlinear: bool) -> None:
    assert is_superlinear(re.compile(expression), searched=searched) is superlinear
    assert is_superlinear(re.compile(expression.encode()), searched=searched) is superlinear
