"""The small changes that a test should notice, made from a module's syntax tree.

A mutation replaces a span of the source, so the rest of the file stays as it is. Left out is what no test should pin:
docstrings, annotations, `__repr__`, logs, help texts, decorators, f-strings, options of classes such as `frozen`.
"""

import ast
import hashlib
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

COMPARE = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "=="}
COMPARE |= {"is": "is not", "is not": "is", "in": "not in", "not in": "in"}
ARITHMETIC = {"+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "%": "//", "**": "*"}
ARITHMETIC |= {"<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "&"}
LOGIC = {"and": "or", "or": "and"}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
OPERATOR = re.compile(rb"is\s+not|not\s+in|is|in|and|or|[<>=!]=|<<|>>|//|\*\*|[-<>+*/%&|^]")
COMMENT = re.compile(rb"#[^\n]*")

LOGS = re.compile(r"(self\.)?_?(log|logger|warnings)\.\w+$", re.IGNORECASE)
"""Calls that are left alone, and so is whether they are made."""
UNTESTED = re.compile(rf"{LOGS.pattern}|print$|cast$|TypeVar$|super\(\).__init__$", re.IGNORECASE)
"""Calls that are left alone."""
UNTESTED_KEYWORDS = {"help", "description", "strict", "stacklevel", "daemon"}

Edit = tuple[int, int, str]
"""Where the source changes, from and to which byte, and what comes there."""


@dataclass(frozen=True, order=True)
class Mutation:
    path: str
    line: int
    start: int
    end: int
    new: str
    function: str
    """What it is in, as `Class.method`; empty: the module."""
    text: str
    """Its lines, as `before -> after`."""

    @property
    def key(self) -> str:
        return f"{self.path} | {self.function} | {self.text}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.start] + self.new.encode() + source[self.end :]

    def rank(self, seed: int) -> str:
        """A random number, which stays the same while other lines change."""
        return hashlib.sha256(f"{seed} {self.key}".encode()).hexdigest()


class _Module:
    """The edits of one file."""

    def __init__(self, source: bytes) -> None:
        self.source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))

    def _span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        start = self._lines[node.lineno - 1] + node.col_offset
        return start, self._lines[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)

    def _operator(self, left: ast.expr, right: ast.expr, table: dict[str, str]) -> Iterator[Edit]:
        """Exchange the operator between two operands."""
        start = self._span(left)[1]
        gap = COMMENT.sub(lambda found: b" " * len(found[0]), self.source[start : self._span(right)[0]])
        found = OPERATOR.search(gap)
        if found and (new := table.get(" ".join(found[0].decode().split()))):
            yield start + found.start(), start + found.end(), new

    def _negated(self, test: ast.expr) -> Iterator[Edit]:
        if isinstance(test, ast.Name | ast.Attribute | ast.Call):
            start, end = self._span(test)
            yield start, end, f"not {self.source[start:end].decode()}"

    def _renamed(self, node: ast.expr | None) -> Iterator[Edit]:
        """Another text where one is compared or looked up."""
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and node.value:
            yield (*self._span(node), repr(node.value[::-1] if len(set(node.value)) > 1 else node.value * 2))

    def edits(self, node: ast.AST) -> Iterator[Edit]:
        """Those of one node, without what is below it."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                values = any(isinstance(each, ast.Return | ast.Yield | ast.YieldFrom) for each in ast.walk(node))
                if len(body) > 1 and not values:
                    yield (*self._span(body[0]), "return")
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Raise():
                yield (*self._span(node), "pass")
            case ast.Return(value=ast.expr() as value) if ast.unparse(value) not in ("None", "''"):  # both are false
                yield (*self._span(node), "return None")
            case ast.Break() | ast.Continue():
                yield (*self._span(node), "continue" if isinstance(node, ast.Break) else "break")
            case ast.AugAssign(target=target, value=value):
                yield from self._operator(target, value, ARITHMETIC)
            case ast.If(test=test) | ast.IfExp(test=test):
                yield from self._negated(test)
            case ast.comprehension(ifs=tests):
                yield from (edit for test in tests for edit in self._negated(test))
            case ast.UnaryOp(op=ast.Not()):
                start, _ = self._span(node)
                yield start, start + len("not"), ""
            case ast.BoolOp(values=values):
                for left, right in itertools.pairwise(values):
                    yield from self._operator(left, right, LOGIC)
            case ast.BinOp(left=left, right=right):
                texts = [isinstance(each, ast.JoinedStr) or bool([*self._renamed(each)]) for each in (left, right)]
                if not any(texts):
                    yield from self._operator(left, right, ARITHMETIC)
            case ast.Compare(left=left, comparators=rights):
                for each, right in itertools.pairwise((left, *rights)):
                    yield from (*self._operator(each, right, COMPARE), *self._renamed(right))
            case ast.Subscript(slice=key):
                yield from self._renamed(key)
            case ast.Dict(keys=keys):
                yield from (edit for key in keys for edit in self._renamed(key))
            case ast.Call(func=ast.Name(id=name) as function) if name in FUNCTIONS:
                yield (*self._span(function), FUNCTIONS[name])
            case ast.Constant(value=bool() as value):
                yield (*self._span(node), str(not value))
            case ast.Constant(value=int() as value):
                yield from ((*self._span(node), str(each)) for each in (value + 1, value - 1) if each >= 0)


def _below(node: ast.AST) -> Iterator[ast.AST]:
    """The parts of a node that are looked at."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body)
        case ast.ClassDef(body=body):
            yield from body
        case ast.AnnAssign(value=value):
            yield from () if value is None else (value,)
        case _:
            yield from ast.iter_child_nodes(node)


def _untested(node: ast.AST, top: bool) -> bool:
    match node:
        case ast.JoinedStr():  # for people; and Python 3.11 doesn't know where its parts stand
            return True
        case ast.FunctionDef(name=name):
            return name in ("__repr__", "__rich_repr__")
        case (
            ast.Call(func=function) | ast.Expr(value=ast.Call(func=function) | ast.Await(value=ast.Call(func=function)))
        ):
            return bool(UNTESTED.match(ast.unparse(function)))
        case ast.keyword(arg=name):
            return name in UNTESTED_KEYWORDS
        case ast.If(test=test, body=[ast.Expr(value=ast.Call(func=function))], orelse=[]):
            return "TYPE_CHECKING" in ast.unparse(test) or bool(LOGS.match(ast.unparse(function)))
        case ast.If(test=test):
            return "TYPE_CHECKING" in ast.unparse(test)
        case ast.Assign(value=ast.BinOp(op=ast.BitOr())):  # a type
            return top
    return False


def _find(module: _Module, node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[Edit, str]]:
    if _untested(node, not names):
        return
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        names = (*names, node.name)
    yield from ((edit, ".".join(names)) for edit in module.edits(node))
    for each in _below(node):
        yield from _find(module, each, names)


def mutations(path: str, source: bytes) -> Iterator[Mutation]:
    """All mutations of a file."""
    for (start, end, new), function in _find(_Module(source), ast.parse(source), ()):
        first, last = source.rfind(b"\n", 0, start) + 1, source.find(b"\n", end)
        before = source[first:last].decode()
        after = (source[first:start] + new.encode() + source[end:last]).decode()
        text = f"{' '.join(before.split())} -> {' '.join(after.split())}"
        yield Mutation(path, source.count(b"\n", 0, start) + 1, start, end, new, function, text)


def is_python(mutation: Mutation, source: bytes) -> bool:
    """Whether the file can still be compiled."""
    try:
        compile(mutation.apply(source), mutation.path, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True
