"""Which unit tests execute a mutation, as one run of them all under coverage.py has it: a context per test.

Lines that imports execute belong to no test, and processes that tests start aren't looked at.
"""

import ast
from pathlib import Path

from coverage import CoverageData

from tests.mutation.mutations import Mutation

RECORD = ("--cov=shared", "--cov=services", "--cov=pointsman", "--cov-context=test", "--cov-report=")


def lines(source: bytes, line: int) -> range | None:
    """Those that are executed with this one: its statement's, or the head of a statement with a body, up to the line.

    None: it is in no function, so imports execute it.
    """
    around = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0)
    ]
    functions = (node for node in around if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    if all(line < node.body[0].lineno for node in functions):
        return None
    inner = around[-1]
    match inner:
        case ast.If() | ast.While() | ast.For() | ast.AsyncFor() | ast.With() | ast.AsyncWith():
            end = max(line, inner.body[0].lineno - 1)
        case ast.Match() | ast.Try() | ast.TryStar() | ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            end = line
        case _:
            end = inner.end_lineno or line
    return range(inner.lineno, end + 1)


class Executed:
    """What `RECORD` has recorded in a tree."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._data = CoverageData(str(tree / ".coverage"))
        self._data.read()

    def tests(self, mutation: Mutation, source: bytes) -> list[str] | None:
        """In order of their names; None: imports execute it, so it may matter to any test."""
        its = lines(source, mutation.line)
        contexts = self._data.contexts_by_lineno(str(self._tree / mutation.path))
        found = {context for line in its or () for context in contexts.get(line, ())}
        return None if its is None or "" in found else sorted({context.rpartition("|")[0] for context in found})
