"""What must hold of metrics pages: whichever way they are read, they say the same, which is what Prometheus' own client
reads.

An input is up to four pages of one endpoint, one after the other, with a form feed between them.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.prometheus_metric import PrometheusMetricExtractor, PrometheusMetricParameters
from services.collector.interfaces import Binding
from services.collector.page.query import Aggregation, Function
from services.collector.page.reader import RESCAN_PAGES, RESCAN_SECONDS, MetricsReader
from services.collector.page.scan import parse_labels, pieces, scan
from shared.attributes import AttributeMap
from shared.bus.codec import decode, encode
from shared.bus.frame_columns import pack
from shared.bus.messages import Frame
from shared.model import Endpoint

MAX_PAGES = 4
ENDPOINT = Endpoint(id="default/a", name="a", address="10.0.0.1", port=8000)
WANTED = ("m", "m_total", "latency_bucket", "latency_count", "vllm:num_requests_waiting", "vllm:lora_requests_info")
PARTS = ("_bucket", "_sum", "_count", "_total", "_info", "_created", "_gsum", "_gcount")
"""What samples' names have after their family's."""
_HEADER = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*)( [^\r]*)")
_SAMPLE = re.compile(
    r'([a-zA-Z_:][a-zA-Z0-9_:]*)(\{(?:[a-z]+="(?:[^"\\\r]|\\[\\n"])*"(?:,(?!\})|(?=\})))*\})? '
    r"([+-]?[0-9]+(?:\.[0-9]+)?(?:e[+-]?[0-9]+)?|NaN|[+-]?Inf)( -?[0-9]{1,15})?"
)
"""A sample of which there are no two opinions."""

Samples = list[tuple[bytes, float, float]]


class Everything:
    """Keeps all samples of a metric."""

    def __init__(self) -> None:
        self.samples: Samples = []

    def offer(self, labels: bytes, value: float, timestamp: float) -> None:
        self.samples.append((labels, value, timestamp))


class Watch:
    """An endpoint's bindings, their reader and what they find: with memory, or with a new reader for each page."""

    def __init__(self, remembers: bool) -> None:
        self._remembers = remembers
        self._bindings = [
            CoreMetricsExtractor("core").bind(ENDPOINT),
            _metric("m"),
            _metric("m_total", Function.RATE),
            _metric("m_total", aggregation=Aggregation.SUM),
            _metric("latency", Function.QUANTILE),
            _metric("latency", Function.MEAN),
        ]
        self._reader = MetricsReader(self._bindings)
        self._attributes = AttributeMap()

    def read(self, page: bytes, at: float, times: int = 1) -> list[Any]:
        """What is known after a page, that the endpoint gave so many times at that moment."""
        if not self._remembers:
            self._reader = MetricsReader(self._bindings)
        for _ in range(times):
            _run(self._reader.read(page, at))
        news = [binding.store(self._attributes, at) for binding in self._bindings]
        samples = list(self._attributes.items())
        columns = pack([(ENDPOINT.id, self._attributes)], at)
        frame = Frame(
            sender="c",
            sent=at,
            sequence=1,
            ids=columns.ids,
            columns=columns.columns,
            ages=columns.ages,
            objects=columns.objects,
            absent=columns.absent,
        )
        assert encode(decode(Frame, encode(frame))) == encode(frame)
        for key, sample in samples:
            assert key.kind is not float or sample.value is None or math.isfinite(sample.value), (key, sample)
        return [news, samples, [binding.findings() for binding in self._bindings]]


def check(data: bytes) -> None:
    """Raises AssertionError, or what the readers let out, for an input that shows a fault."""
    pages = data.split(b"\f", MAX_PAGES - 1)
    for page in pages:
        _check_scans(page)
    families = [_families(page) for page in pages]
    remembering, scanning = Watch(True), Watch(False)
    at, before, known = 0.0, b"", families[0]
    for page, found in zip(pages, families, strict=True):
        if at and (found is None or known is None or not found <= known):
            # until the whole page is looked at, a sample may be hidden
            remembering.read(before, at, RESCAN_PAGES)
            scanning.read(before, at)
            at += 2 * RESCAN_SECONDS
        at, before, known = at + 0.1, page, found
        assert _equal(remembering.read(page, at), scanning.read(page, at))


def _check_scans(page: bytes) -> None:
    """However a page is cut into pieces and turns, it has the same samples; those that Prometheus' client reads."""
    theirs = _parsed(page)
    for name in WANTED:
        key = name.encode()
        whole = _scanned(page, key, [(0, len(page))])
        assert _equal(whole, _scanned(page, key, [(0, len(page))], limit=1))
        assert _equal(whole, _scanned(page, key, pieces(page, 40, len(page) + 1)))
        if theirs is not None:
            ours = [(dict(parse_labels(labels)), value, moment) for labels, value, moment in whole]
            assert _equal(ours, theirs.get(name, [])), (name, ours, theirs.get(name))


def _scanned(page: bytes, name: bytes, pieces: Any, limit: int | None = None) -> Samples:
    sink = Everything()
    for start, end in pieces:
        while start < end:
            found = scan(page, name, [sink], start, end, limit)
            assert found.end > start
            start = found.end
    return sink.samples


def _parsed(page: bytes) -> dict[str, list[tuple[dict[str, str], float, float]]] | None:
    """Every sample by name, according to prometheus_client; None for a page on which there may be two opinions."""
    if (lines := _lines(page)) is None or not all(_HEADER.fullmatch(line) or _SAMPLE.fullmatch(line) for line in lines):
        return None
    # without headers, by which the client gives samples of counters other names
    text = "".join(f"{line}\n" for line in lines if not line.startswith("#"))
    found: dict[str, list[tuple[dict[str, str], float, float]]] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                moment = 0.0 if sample.timestamp is None else round(float(sample.timestamp) * 1000)
                found.setdefault(sample.name, []).append((dict(sample.labels), float(sample.value), float(moment)))
    except ValueError:
        return None
    return found


def _families(page: bytes) -> set[str] | None:
    """The families with a type of a page that keeps the format's rule of one group a family, below its header; else
    None."""
    if (lines := _lines(page)) is None:
        return None
    families: dict[str, set[str]] = {}
    current = ""
    for line in lines:
        if header := _HEADER.fullmatch(line):
            word, name, _ = header.groups()
            if name != current and name in families:
                return None
            if word in families.setdefault(name, set()) or "samples" in families[name]:
                return None
            families[name].add(word)
            current = name
        elif sample := _SAMPLE.fullmatch(line):
            name = sample.group(1)
            if not current or name not in (current, *(current + part for part in PARTS)):
                return None
            if "TYPE" not in families[current]:
                return None
            families[current].add("samples")
        else:
            return None
    if any(name + part in families for name in families for part in PARTS):
        return None
    return {name for name, has in families.items() if "TYPE" in has}


def _lines(page: bytes) -> list[str] | None:
    try:
        text = page.decode()
    except UnicodeDecodeError:
        return None
    return [line for line in text.split("\n") if line]


def _metric(name: str, function: Function = Function.VALUE, aggregation: Aggregation | None = None) -> Binding:
    parameters = PrometheusMetricParameters(
        metric_name=name,
        function=function,
        aggregation=aggregation,
        quantile=0.5 if function is Function.QUANTILE else None,
    )
    return PrometheusMetricExtractor(f"{name}-{function}-{aggregation}", parameters).bind(ENDPOINT)


def _run(reading: Any) -> None:
    """Drive a coroutine that waits for nothing but its next turn."""
    try:
        while True:
            reading.send(None)
    except StopIteration:
        pass


def _equal(one: Any, other: Any) -> bool:
    """As `==`, and NaN is NaN."""
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, Sequence) and isinstance(other, Sequence) and not isinstance(one, str | bytes):
        return len(one) == len(other) and all(map(_equal, one, other))
    return bool(one == other)
