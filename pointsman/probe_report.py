"""The results of `pointsman probe`, as text for people and as JSON for programs."""

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from pointsman.probe_missing import MissingMetric
from pointsman.table import DASH, text_table
from services.collector.http.client import Failure
from services.collector.page.selection import Outcome
from shared.quantities import format_duration

FOUND = Outcome.FOUND.value
COLUMNS = ("attribute", "value", "outcome", "specification")

HINTS: dict[Failure, str] = {
    Failure.CONNECT: "is the server running, and is this its port?",
    Failure.TIMEOUT: "--timeout allows more time; the default of the collector's --scrape-timeout is 1s",
    Failure.TLS: "set the CA of the server's certificate with --ca-cert, or with caCertPath of a source",
    Failure.PROTOCOL: "is it an HTTP server, and is the scheme http or https right?",
    Failure.REDIRECT: "the collector doesn't follow redirects either; use the URL of the target",
    Failure.CONTENT: "set the metrics page in the URL or in path of the source",
    Failure.STATUS: "the page may have another path: trtllm-serve has /prometheus/metrics; Triton another port, 8002",
    Failure.TOO_LARGE: "--page-limit raises the limit, and so does the collector's flag of that name",
}


class Attribute(Struct, frozen=True, kw_only=True, rename="camel"):
    """An attribute, and what the page has of it."""

    name: str
    specification: str
    outcome: str
    value: Any = None
    """None if the page has none."""


class Extraction(Struct, frozen=True, kw_only=True, rename="camel"):
    """What an extractor read from a page."""

    extractor: str
    decided: dict[str, str] = {}
    """What the extractor decided about the endpoint, such as its engine."""
    attributes: tuple[Attribute, ...] = ()

    @property
    def outcomes(self) -> dict[str, str]:
        """The outcome of each specification; `found` if any attribute has a value from it."""
        outcomes: dict[str, str] = {}
        for attribute in self.attributes:
            if outcomes.get(attribute.specification) != FOUND:
                outcomes[attribute.specification] = attribute.outcome
        return outcomes


class Page(Struct, frozen=True, kw_only=True, rename="camel"):
    """A page, or the reason why it couldn't be read."""

    source: str
    url: str
    ok: bool
    scrapes: int = 0
    """Number of pages that were read."""
    bytes: int = 0
    seconds: float | UnsetType = UNSET
    """From the request to the end of the response, for the last page; a saved page has none."""
    error: str = ""
    hint: str = ""
    extractions: tuple[Extraction, ...] = ()
    missing: tuple[MissingMetric, ...] = ()
    """Requested metrics that the page doesn't have."""


def lines(page: Page) -> list[str]:
    """The page as text."""
    if not page.ok:
        text = [f"{page.url}: no page: {page.error}"]
        return [*text, f"  {page.hint}"] if page.hint else text
    size = f"{page.bytes:,}".replace(",", " ")
    took = "" if page.seconds is UNSET else f" in {format_duration(round(page.seconds, 4))}"
    again = f", the last of {page.scrapes}" if page.scrapes > 1 else ""
    text = [f"{page.url}: read, {size} bytes{took}{again}"]
    for extraction in page.extractions:
        text += ["", f"{page.source} → {extraction.extractor}", *(f"  {line}" for line in _extraction(extraction))]
    return text


def _extraction(extraction: Extraction) -> list[str]:
    text = [f"{name.replace('_', ' ')}: {value}" for name, value in extraction.decided.items()]
    rows = [
        (attribute.name, _shown(attribute.value), attribute.outcome, attribute.specification)
        for attribute in extraction.attributes
    ]
    text += text_table(COLUMNS, rows)
    outcomes = extraction.outcomes
    missing = [f"{what} ({outcome})" for what, outcome in outcomes.items() if outcome != FOUND]
    text.append(
        f"{len(outcomes) - len(missing)} of {len(outcomes)} found" + (f"; not: {', '.join(missing)}" if missing else "")
    )
    return text


def _shown(value: Any) -> str:
    match value:
        case None:
            return DASH
        case float() if value.is_integer() and abs(value) < 1e15:
            return str(int(value))
        case float():
            return f"{value:.6g}"
        case tuple():
            return ", ".join(map(str, value)) or "none"
        case _:
            return str(value)
