"""A reader that remembers a page's layout reads what a whole scan reads."""

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.prometheus_metric import PrometheusMetricExtractor, PrometheusMetricParameters
from services.collector.interfaces import Binding
from services.collector.page import reading
from services.collector.page.measure import Aggregation, Function
from services.collector.page.reading import MOST_GROUP, SLACK, WHOLE_EVERY, WHOLE_PAGES, MetricsReader
from services.collector.page.scan import STEP, scan
from shared.attributes import ACTIVE_MODELS, KV_CACHE_USAGE, WAITING_QUEUE_SIZE, AttributeKey, AttributeMap
from shared.model import Endpoint
from tests.unit.services.collector.pages import recorded_vllm_page

EXAMPLES = int(os.environ.get("POINTSMAN_SCAN_EXAMPLES", "200"))
"""Generated sequences of pages; more by the environment."""

ENDPOINT = Endpoint(id="default/a", name="a", address="10.0.0.1", port=8000)


def metric(name: str, function: Function = Function.VALUE, aggregation: Aggregation | None = None) -> Binding:
    parameters = PrometheusMetricParameters(
        metric_name=name,
        function=function,
        aggregation=aggregation,
        quantile=0.5 if function is Function.QUANTILE else None,
    )
    return PrometheusMetricExtractor(f"{name}-{function}-{aggregation}", parameters).bind(ENDPOINT)


def bindings() -> list[Binding]:
    return [
        CoreMetricsExtractor("core").bind(ENDPOINT),
        metric("requests_total", Function.RATE),
        metric("requests_total", aggregation=Aggregation.SUM),
        metric("latency", Function.QUANTILE),
        metric("latency", Function.MEAN),
        metric("latency_count"),
        metric("bare", aggregation=Aggregation.MAX),
    ]


class Watch:
    """Bindings, their reader and what they find: with memory, or with a new reader for each page."""

    def __init__(self, remembers: bool) -> None:
        self.bindings = bindings()
        self.attributes = AttributeMap()
        self.reader = MetricsReader(self.bindings)
        self._remembers = remembers

    def read(self, page: bytes, at: float) -> list[object]:
        if not self._remembers:
            self.reader = MetricsReader(self.bindings)
        asyncio.run(self._read(page, at))
        news = [one.store(self.attributes, at) for one in self.bindings]
        return [news, self.attributes.items(), [one.findings() for one in self.bindings]]

    def read_again(self, page: bytes, at: float) -> None:
        """The same page so often at that moment that the number of pages is no reason to keep the memory."""
        asyncio.run(self._read(page, at, 2 * WHOLE_PAGES))

    async def _read(self, page: bytes, at: float, times: int = 1) -> None:
        for _ in range(times):
            await self.reader.read(page, at)


@dataclass(frozen=True)
class Family:
    """A family of a generated page, with the lines of its samples."""

    name: str
    kind: str
    series: tuple[str, ...] = ()
    help: str | None = "Help."
    typed: bool = True
    comment: int = 0
    """After how many samples a comment stands; 0 for none."""

    def lines(self) -> list[str]:
        header = [] if self.help is None else [f"# HELP {self.name} {self.help}"]
        if self.typed:
            header.append(f"# TYPE {self.name} {self.kind}")
        samples = list(self.series)
        if self.comment:
            samples.insert(self.comment, "# nothing but a comment")
        return header + samples


@dataclass
class Page:
    """A page that keeps the format's rules, to be changed and written."""

    families: list[Family]
    end: str = "\n"
    closing: list[str] = field(default_factory=list)

    def text(self) -> bytes:
        lines = [line for family in self.families for line in family.lines()] + self.closing
        return (self.end.join(lines) + self.end).encode()


numbers = st.integers(0, 10**9).map(str) | st.floats(0, 1).map(repr) | st.sampled_from(["0", "NaN", "1e3"])
engines = st.integers(0, 2)
names = st.lists(st.sampled_from(["a", "lora-b", "lora-with-a-long-name"]), max_size=2).map(",".join)
KINDS = {
    "vllm:num_requests_waiting": "gauge",
    "vllm:num_requests_running": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:gpu_cache_usage_perc": "gauge",
    "vllm:lora_requests_info": "gauge",
    "vllm:cache_config_info": "gauge",
    "vllm:num_requests_waiting_by_reason": "gauge",
    "requests": "counter",
    "latency": "histogram",
    "bare": "untyped",
}


@st.composite
def series(draw: st.DrawFn, name: str) -> tuple[str, ...]:
    lines: list[str] = []
    for engine in sorted(draw(st.sets(engines, max_size=3))):
        stamp = draw(st.sampled_from(["", "", " 5", " 1700000000000"]))
        labels = f'engine="{engine}"'
        match name:
            case "vllm:lora_requests_info":
                labels += f',running_lora_adapters="{draw(names)}",waiting_lora_adapters="{draw(names)}",max_lora="4"'
            case "vllm:cache_config_info":
                labels += f',block_size="{draw(st.sampled_from(["16", "128"]))}",num_gpu_blocks="1000"'
            case "latency":
                counts = sorted(draw(st.lists(st.integers(0, 20), min_size=3, max_size=3)))
                bounds = zip(("0.1", "1.0", "+Inf"), counts, strict=True)
                lines += [f'latency_bucket{{{labels},le="{bound}"}} {count}' for bound, count in bounds]
                lines += [f"latency_sum{{{labels}}} {draw(numbers)}", f"latency_count{{{labels}}} {counts[-1]}"]
                continue
            case "requests":
                lines.append(f"requests_total{{{labels}}} {draw(numbers)}{stamp}")
                continue
        lines.append(f"{name}{{{labels}}} {draw(numbers)}{stamp}")
    return tuple(lines)


@st.composite
def families(draw: st.DrawFn, name: str) -> Family:
    typed = name != "bare" and draw(st.integers(0, 9)) > 0
    nasty = "# TYPE vllm:num_requests_waiting gauge"
    help = draw(st.sampled_from(["Help.", nasty, "A longer text.", None]))
    return Family(name, KINDS[name], draw(series(name)), help, typed)


def filler(count: int, number: int = 0) -> Family:
    """A family that nobody wants, of any length."""
    lines = tuple(f'other_{number}{{i="{index}",text="vllm:num_requests_waiting 5"}} 1' for index in range(count))
    return Family(f"other_{number}", "gauge", lines)


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[float, bytes, bool]]:
    """Pages of one server with the seconds at which they are read, and whether they may have a wanted family that
    wasn't there before: that comes only after more than `WHOLE_EVERY`."""
    chosen = draw(st.permutations(sorted(KINDS)))[: draw(st.integers(1, len(KINDS)))]
    page = Page([draw(families(name)) for name in chosen], draw(st.sampled_from(["\n", "\r\n"])))
    page.families.insert(draw(st.integers(0, len(page.families))), filler(draw(st.sampled_from([1, 20]))))
    if draw(st.booleans()):
        page.closing = ["# EOF"]
    at = draw(st.floats(0, 5))
    pages = [(at, page.text(), False)]
    for _ in range(draw(st.integers(1, 6))):
        step, more = draw(st.sampled_from([0.05, 0.05, 0.4, 2 * WHOLE_EVERY])), False
        there = page.families
        for _ in range(draw(st.integers(0, 2))):
            index = draw(st.integers(0, len(there) - 1))
            one = there[index]
            match draw(st.integers(0, 7)):
                case 0:
                    there.append(there.pop(index))
                case 1 if len(there) > 1:
                    there.pop(index)
                case 2:
                    missing = sorted(set(KINDS) - {family.name for family in there})
                    if missing:
                        there.insert(index, draw(families(draw(st.sampled_from(missing)))))
                        step, more = 1.5 * WHOLE_EVERY, True
                case 3:
                    there.insert(index, filler(draw(st.sampled_from([1, 5, 60])), len(there)))
                case 4 if one.name in KINDS and one.help is not None:
                    there[index] = replace(one, help=draw(st.sampled_from(["Help.", "Another help text."])))
                case 5 if len(one.series) > 1:
                    there[index] = replace(one, comment=1)
                case _ if one.name in KINDS and (one.typed or one.series):
                    new = draw(series(one.name))
                    # without a header a family without samples isn't there at all
                    there[index] = replace(one, series=new or (one.series if not one.typed else ()), comment=0)
        at += step
        pages.append((at, page.text(), more))
    return pages


@settings(max_examples=EXAMPLES, deadline=None)
@given(sequences())
def test_pages_that_keep_the_rules_give_what_whole_scans_give(pages: list[tuple[float, bytes, bool]]) -> None:
    remembering, scanning = Watch(True), Watch(False)
    last: tuple[bytes, float] | None = None
    for at, page, more in pages:
        if more and last is not None:
            remembering.read_again(*last)
        assert remembering.read(page, at) == scanning.read(page, at)
        last = page, at


def test_the_recorded_page_gives_what_a_whole_scan_gives_again_and_again() -> None:
    remembering, scanning = Watch(True), Watch(False)
    page = recorded_vllm_page()
    for step in range(40):
        assert remembering.read(page, step * 0.05) == scanning.read(page, step * 0.05)
        page = page.replace(b"} 0.0\n", b"} 12.5\n", 3)


class Counted:
    """Counts the searches of whole pages, and the scans of groups."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.searches: list[bytes] = []
        self.scans: list[bytes] = []
        search = MetricsReader._search

        async def searching(reader: MetricsReader, page: bytes, name: bytes, selectors: Sequence[object]) -> None:
            self.searches.append(name)
            await search(reader, page, name, selectors)  # type: ignore[arg-type]

        def scanning(page: bytes, name: bytes, *rest: object) -> object:
            self.scans.append(name)
            return scan(page, name, *rest)  # type: ignore[arg-type]

        monkeypatch.setattr(MetricsReader, "_search", searching)
        monkeypatch.setattr(reading, "scan", scanning)

    def take(self) -> tuple[list[bytes], list[bytes]]:
        taken = self.searches, self.scans
        self.searches, self.scans = [], []
        return taken


def waiting(value: str, before: int = 3) -> bytes:
    families = [filler(before), Family("m", "gauge", (f"m {value}",)), Family("n", "gauge", ("n 1",)), filler(3, 1)]
    return Page(families).text()


def watch(name: str = "m") -> tuple[MetricsReader, Binding, AttributeMap, AttributeKey[float]]:
    binding = metric(name)
    return MetricsReader([binding]), binding, AttributeMap(), AttributeKey(name, f"{name}-value-None", float)


def test_a_group_that_says_the_same_is_not_parsed_again_and_counts_as_seen_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted = Counted(monkeypatch)
    reader, binding, attributes, key = watch()
    for at in (0.0, 0.5):
        asyncio.run(reader.read(waiting("5"), at))
        binding.store(attributes, at)
    assert counted.take() == ([b"m"], [b"m"])
    sample = attributes.sample(key)
    assert sample is not None
    assert (sample.value, sample.at) == (5.0, 0.5)


def test_a_group_that_has_moved_a_little_is_found_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    reader, binding, attributes, key = watch()
    values = []
    for step, page in enumerate((waiting("5"), waiting("5.25", 9), waiting("6", 1))):
        asyncio.run(reader.read(page, step * 0.1))
        binding.store(attributes, 0.0)
        values.append(attributes.get(key))
    assert values == [5.0, 5.25, 6.0]
    assert counted.take() == ([b"m"], [b"m"] * 3)


def test_a_group_that_has_moved_far_is_searched_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = Counted(monkeypatch)
    reader, binding, attributes, key = watch()
    for step, page in enumerate((waiting("5"), waiting("6", SLACK), waiting("7", SLACK))):
        asyncio.run(reader.read(page, step * 0.1))
    binding.store(attributes, 0.0)
    assert attributes.get(key) == 7.0
    assert counted.take()[0] == [b"m", b"m"]


@pytest.mark.parametrize(("before", "after"), [(b"", b"# HELP m Help.\n"), (b"# HELP m Help.\n", b"")])
def test_a_header_may_get_lines_on_either_side(before: bytes, after: bytes) -> None:
    reader, binding, attributes, key = watch()
    for at, page in ((0.0, b"# TYPE m gauge\nm 5\n"), (0.1, before + b"# TYPE m gauge\n" + after + b"m 6\n")):
        asyncio.run(reader.read(page, at))
        binding.store(attributes, at)
    assert attributes.get(key) == 6.0


@pytest.mark.parametrize(("interval", "pages"), [(0.05, 20), (0.1, 10), (1.0, 10), (5.0, 10)])
def test_a_family_that_appears_is_found_within_a_second_or_ten_pages(interval: float, pages: int) -> None:
    reader, binding, attributes, key = watch("late")
    before, after = waiting("5"), waiting("5") + b"# TYPE late gauge\nlate 3\n"
    found = []
    for step in range(pages + 1):
        asyncio.run(reader.read(after if step else before, step * interval))
        binding.store(attributes, 0.0)
        found.append(attributes.get(key))
    assert found == [*[None] * pages, 3.0]


def test_a_page_that_breaks_the_rule_hides_a_sample_until_the_whole_page_is_looked_at() -> None:
    reader, binding, attributes, key = watch()
    scattered = waiting("5") + b"m 8 1700000000000\n"
    found = []
    for step in range(WHOLE_PAGES + 1):
        asyncio.run(reader.read(scattered if step else waiting("5"), step * WHOLE_EVERY))
        binding.store(attributes, 0.0)
        found.append(attributes.get(key))
    assert found == [*[5.0] * WHOLE_PAGES, 8.0]


@pytest.mark.parametrize("interval", [0.05, 1.0, 5.0])
def test_few_pages_are_searched_as_a_whole_however_long_the_interval_is(
    monkeypatch: pytest.MonkeyPatch, interval: float
) -> None:
    counted = Counted(monkeypatch)
    reader, *_ = watch()
    for step in range(50):
        asyncio.run(reader.read(waiting(str(step)), step * interval))
    assert len(counted.take()[0]) <= 50 / WHOLE_PAGES


def test_a_page_that_breaks_the_rule_from_the_beginning_is_scanned_as_a_whole_each_time() -> None:
    reader, binding, attributes, key = watch()
    found = []
    for step in range(4):
        page = b"# TYPE m gauge\nm 5\n# TYPE n gauge\nn 1\n" + b"m %d 1700000000000\n" % step
        asyncio.run(reader.read(page, step * 0.1))
        binding.store(attributes, 0.0)
        found.append(attributes.get(key))
    assert found == [0.0, 1.0, 2.0, 3.0]


def test_a_group_that_is_too_large_to_be_remembered_is_read_all_the_same() -> None:
    reader, binding, attributes, key = watch()
    for step in range(3):
        lines = tuple(f'm{{i="{index}"}} {step}' for index in range(MOST_GROUP // 8))
        asyncio.run(reader.read(Page([Family("m", "gauge", lines)]).text(), step * 0.1))
        binding.store(attributes, 0.0)
        assert attributes.get(key) == step


def test_an_adapter_is_seen_on_the_page_that_first_has_it() -> None:
    """vLLM names the family before it has a series of it."""
    binding, attributes = CoreMetricsExtractor("core").bind(ENDPOINT), AttributeMap()
    reader = MetricsReader([binding])
    page = recorded_vllm_page()
    line = b"# TYPE vllm:lora_requests_info gauge\n"
    sample = (
        line + b'vllm:lora_requests_info{max_lora="2",running_lora_adapters="sql",waiting_lora_adapters=""} 1.7e9\n'
    )
    for at, one in ((0.0, page), (0.1, page), (0.2, page.replace(line, sample))):
        asyncio.run(reader.read(one, at))
        binding.store(attributes, at)
    assert attributes.get(ACTIVE_MODELS) == ("sql",)


def test_a_former_name_takes_over_when_the_new_one_disappears() -> None:
    binding, attributes = CoreMetricsExtractor("core").bind(ENDPOINT), AttributeMap()
    reader = MetricsReader([binding])
    waiting_family = Family("vllm:num_requests_waiting", "gauge", ("vllm:num_requests_waiting 1",))
    new = Family("vllm:kv_cache_usage_perc", "gauge", ("vllm:kv_cache_usage_perc 0.5",))
    old = Family("vllm:gpu_cache_usage_perc", "gauge", ("vllm:gpu_cache_usage_perc 0.25",))
    values = []
    for step, families in enumerate(([new, old], [old], [old], [new], [new, old])):
        asyncio.run(reader.read(Page([waiting_family, *families]).text(), step * 0.1))
        binding.store(attributes, 0.0)
        values.append(attributes.get(KV_CACHE_USAGE))
    assert values == [0.5, 0.25, 0.25, 0.5, 0.5]


async def test_a_long_page_lets_others_work_while_it_is_read() -> None:
    page = b"".join(b'other{i="%d"} 1\n' % number for number in range(40_000)) + b"vllm:num_requests_waiting 4\n"
    binding, attributes = CoreMetricsExtractor("core").bind(ENDPOINT), AttributeMap()
    reader = MetricsReader([binding])
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(others())
    await reader.read(page, 0.0)
    working.cancel()
    binding.store(attributes, 1.0)
    assert attributes.get(WAITING_QUEUE_SIZE) == 4.0
    assert turns >= len(page) // STEP


async def test_a_million_series_are_read_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step does is bounded, and so is what is kept."""
    steps: list[int] = []

    def scanning(page: bytes, name: bytes, selectors: Sequence[object], start: int, end: int, most: int) -> object:
        steps.append(most * len(selectors))
        return scan(page, name, selectors, start, end, most)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "scan", scanning)
    count = 1_000_000
    page = b"# TYPE m gauge\n" + b"m 1\n" * (count - 1) + b"m 7 5\n"
    both = [metric("m"), metric("m", aggregation=Aggregation.SUM)]
    reader, attributes = MetricsReader(both), AttributeMap()
    await reader.read(page, 0.0)
    for one in both:
        one.store(attributes, 0.0)
    assert len(steps) >= 2 * count // reading.MOST_OFFERS
    assert set(steps) == {reading.MOST_OFFERS}
    assert [sample.value for _, sample in attributes.items()] == [7.0, 7.0]


def test_a_reader_says_how_many_metrics_have_a_known_place() -> None:
    reader, *_ = watch()
    asyncio.run(reader.read(waiting("5"), 0.0))
    assert repr(reader) == "<MetricsReader 1 bindings, 1 metrics with a known place>"
