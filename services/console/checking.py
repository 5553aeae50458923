"""Checks each configuration document in a process of its own.

A check can take seconds and holds the interpreter's lock for parts of them, so a thread would stall the event loop. The
process reads the document and its bounds from stdin, as JSON, and writes a `CheckResult`.
"""

import sys

import msgspec
from msgspec import Struct

from shared.config import Invalid, load
from shared.config.defaults import revision
from shared.config.schema import Bounds, StaleMetrics
from shared.service.child import ChildFailed, confined_with_plugins, run_child

TIMEOUT = 30.0
"""Seconds that a document gets."""
MAX_BYTES = 32 * 2**20
"""Of a result."""


class CheckResult(Struct, frozen=True):
    """What the tiers make of a document."""

    revision: str = ""
    plugins: int = 0
    errors: list[str] = []
    warnings: list[str] = []
    stale_after: float = StaleMetrics().after
    """Seconds after which it takes metrics for stale."""


class CheckFailed(Exception):
    """The check of a document failed; the text says why."""


class _Document(Struct, frozen=True):
    text: str
    bounds: Bounds


async def check_document(text: str, bounds: Bounds) -> CheckResult:
    """What the tiers make of a document. Raises CheckFailed."""
    try:
        output = await run_child(__name__, msgspec.json.encode(_Document(text, bounds)), TIMEOUT, MAX_BYTES)
        return msgspec.json.decode(output, type=CheckResult)
    except (ChildFailed, msgspec.DecodeError) as error:
        raise CheckFailed(f"the document can't be checked: {error}") from error


def main() -> None:
    """Read one document."""
    registry, answers = confined_with_plugins()
    document = msgspec.json.decode(sys.stdin.buffer.read(), type=_Document)
    try:
        loaded = load(document.text, registry, allow_experimental=True, bounds=document.bounds)
    except Invalid as error:
        reading = CheckResult(revision(document.text), errors=error.lines())
    else:
        warnings = [str(warning) for warning in loaded.warnings]
        reading = CheckResult(
            loaded.revision, len(loaded.plugins), warnings=warnings, stale_after=loaded.stale_metrics.after
        )
    answers.buffer.write(msgspec.json.encode(reading))
    answers.flush()


if __name__ == "__main__":
    main()
