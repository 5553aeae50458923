"""What `pointsman probe` found, as text for humans and as JSON for machines."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from pointsman.probe_missing import Missing
from services.collector.http.client import Failure
from services.collector.page.selection import Outcome
from shared.quantities import format_duration

ABSENT = "–"
FOUND = Outcome.FOUND.value
COLUMNS = ("attribute", "value", "outcome", "specification")

HINTS: dict[Failure, str] = {
    Failure.CONNECT: "is the server running, and is that its port?",
    Failure.TIMEOUT: "--timeout gives it longer; the collector's --scrape-timeout is 1s unless set",
    Failure.TLS: "--ca-cert names the CA that signs the server, or a source's caCertPath does",
    Failure.PROTOCOL: "is it an HTTP server, and is http or https right?",
    Failure.REDIRECT: "the collector doesn't follow it either; name the page where it leads",
    Failure.CONTENT: "name the metrics page in the URL or in the source's path",
    Failure.STATUS: "the page may have another path: trtllm-serve has /prometheus/metrics; Triton another port, 8002",
    Failure.TOO_LARGE: "--page-limit takes larger ones, and the collector's flag of that name",
}


class Attribute(Struct, frozen=True, kw_only=True, rename="camel"):
    """What was looked for, and what the page said about it."""

    name: str
    specification: str
    outcome: str
    value: Any = None
    """None where there is none."""


class Extraction(Struct, frozen=True, kw_only=True, rename="camel"):
    """What an extractor made of a page."""

    extractor: str
    decided: dict[str, str] = {}
    """What was decided about the endpoint, and what else there is to say: the engine, say."""
    attributes: tuple[Attribute, ...] = ()

    @property
    def outcomes(self) -> dict[str, str]:
        """What became of each specification; `found` where anything was taken from it."""
        outcomes: dict[str, str] = {}
        for one in self.attributes:
            if outcomes.get(one.specification) != FOUND:
                outcomes[one.specification] = one.outcome
        return outcomes


class Page(Struct, frozen=True, kw_only=True, rename="camel"):
    """A page, or why there is none."""

    source: str
    url: str
    ok: bool
    scrapes: int = 0
    """Pages that were read."""
    bytes: int = 0
    seconds: float | UnsetType = UNSET
    """From the request to the end of the answer, of the last page; a saved page has taken no time."""
    error: str = ""
    hint: str = ""
    extractions: tuple[Extraction, ...] = ()
    missing: tuple[Missing, ...] = ()
    """What a configuration or flags ask for and the page doesn't have."""


def lines(page: Page) -> list[str]:
    """For humans."""
    if not page.ok:
        told = [f"{page.url}: no page: {page.error}"]
        return [*told, f"  {page.hint}"] if page.hint else told
    size = f"{page.bytes:,}".replace(",", " ")
    took = "" if page.seconds is UNSET else f" in {format_duration(round(page.seconds, 4))}"
    again = f", the last of {page.scrapes}" if page.scrapes > 1 else ""
    told = [f"{page.url}: read, {size} bytes{took}{again}"]
    for one in page.extractions:
        told += ["", f"{page.source} → {one.extractor}", *(f"  {line}" for line in _extraction(one))]
    return told


def _extraction(extraction: Extraction) -> list[str]:
    told = [f"{name.replace('_', ' ')}: {text}" for name, text in extraction.decided.items()]
    rows = [COLUMNS, *((one.name, _shown(one.value), one.outcome, one.specification) for one in extraction.attributes)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(COLUMNS) - 1)]
    for row in rows:
        told.append("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]))
    outcomes = extraction.outcomes
    missing = [f"{what} ({outcome})" for what, outcome in outcomes.items() if outcome != FOUND]
    told.append(
        f"{len(outcomes) - len(missing)} of {len(outcomes)} found" + (f"; not: {', '.join(missing)}" if missing else "")
    )
    return told


def _shown(value: Any) -> str:
    match value:
        case None:
            return ABSENT
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case float():
            return f"{value:.6g}"
        case tuple():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value)
