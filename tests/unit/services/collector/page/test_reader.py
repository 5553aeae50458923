"""A reader that remembers a page's layout reads what a whole scan reads."""

import asyncio
import os
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.prometheus_metric import PrometheusMetricExtractor, PrometheusMetricParameters
from services.collector.interfaces import Binding
from services.collector.page import reader as page_reader
from services.collector.page.query import Aggregation, Function
from services.collector.page.reader import (
    MAX_BLOCK,
    MAX_HEADER,
    RESCAN_PAGES,
    RESCAN_SECONDS,
    SEARCH_RANGE,
    MetricsReader,
)
from services.collector.page.scan import scan
from shared.attributes import ACTIVE_MODELS, AttributeKey, AttributeMap
from shared.model import Endpoint
from tests.unit.services.collector.pages import recorded_vllm_page

EXAMPLES = int(os.environ.get("POINTSMAN_SCAN_EXAMPLES", "60"))
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
        news = [binding.store(self.attributes, at) for binding in self.bindings]
        return [news, self.attributes.items(), [each_binding.findings() for each_binding in self.bindings]]

    def read_again(self, page: bytes, at: float) -> None:
        """The same page so often at that moment that the number of pages is no reason to keep the memory."""
        asyncio.run(self._read(page, at, 2 * RESCAN_PAGES))

    async def _read(self, page: bytes, at: float, times: int = 1) -> None:
        for _ in range(times):
            await self.reader.read(page, at)


def group(name: str, *samples: str, kind: str = "gauge", help: str = "Help.") -> str:
    """A family as pages have it: its header and its samples."""
    header = [f"# HELP {name} {help}"] * bool(help) + [f"# TYPE {name} {kind}"] * bool(kind)
    return "".join(f"{each}\n" for each in (*header, *samples))


def filler(count: int, number: int = 0) -> str:
    """A family that nobody wants, of any length."""
    text = "vllm:num_requests_waiting 5"
    return group(f"other_{number}", *(f'other_{number}{{i="{index}",text="{text}"}} 1' for index in range(count)))


SERIES = {
    **{
        name: f'{name}{{{{engine="{{e}}"}}}} {{v}}'
        for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:num_requests_waiting_by_reason")
    },
    "vllm:kv_cache_usage_perc": 'vllm:kv_cache_usage_perc{{engine="{e}"}} {v}',
    "vllm:gpu_cache_usage_perc": 'vllm:gpu_cache_usage_perc{{engine="{e}"}} {v} 1700000000000',
    "vllm:lora_requests_info": (
        'vllm:lora_requests_info{{max_lora="4",running_lora_adapters="{a}",waiting_lora_adapters="b"}} {v}'
    ),
    "vllm:cache_config_info": 'vllm:cache_config_info{{block_size="{e}6",num_gpu_blocks="1000"}} 1.0',
    "requests": 'requests_total{{engine="{e}"}} {v} 5',
    "latency": (
        'latency_bucket{{engine="{e}",le="0.1"}} {e}\nlatency_bucket{{engine="{e}",le="+Inf"}} {v}\n'
        'latency_sum{{engine="{e}"}} {v}\nlatency_count{{engine="{e}"}} {v}'
    ),
    "bare": "bare {v}",
}
"""Samples of families by name, of which pages have none, one or several."""
numbers = st.integers(0, 10**9).map(str) | st.sampled_from(["0", "0.25", "NaN", "1e3"])
adapters = st.sampled_from(["", "a", "lora-b,a", "lora-with-a-long-name"])


@st.composite
def families(draw: st.DrawFn, name: str) -> str:
    if name not in SERIES:
        return filler(draw(st.sampled_from([1, 5, 60])))
    kind = "" if name == "bare" else draw(st.sampled_from(["gauge"] * 5 + [""]))
    help = draw(st.sampled_from(["Help.", "# TYPE vllm:num_requests_waiting gauge", "A longer text.", ""]))
    engines = draw(st.integers(0 if kind else 1, 3))  # without a header a family without samples isn't there at all
    samples = [SERIES[name].format(e=engine, v=draw(numbers), a=draw(adapters)) for engine in range(engines)]
    if samples and not draw(st.integers(0, 5)):
        samples.insert(1, "# nothing but a comment")
    return group(name, *samples, kind=kind, help=help)


@st.composite
def sequences(draw: st.DrawFn) -> list[tuple[float, dict[str, str]]]:
    """The families of each page of one server, in order, with the seconds since the page before."""
    chosen = draw(st.lists(st.sampled_from([*SERIES, "other"]), min_size=1, unique=True))
    page = {name: draw(families(name)) for name in chosen}
    pages = [(draw(st.floats(0, 5)), page)]
    for _ in range(draw(st.integers(1, 6))):
        there = list(page.items())
        for _ in range(draw(st.integers(0, 2))):
            index = draw(st.integers(0, len(there) - 1))
            match draw(st.integers(0, 5)):
                case 0:
                    there.append(there.pop(index))
                case 1 if len(there) > 1:
                    there.pop(index)
                case 2:
                    name = draw(st.sampled_from([*SERIES, "other"]))
                    if name not in dict(there):
                        there.insert(index, (name, draw(families(name))))
                case _:
                    there[index] = (there[index][0], draw(families(there[index][0])))
        page = dict(there)
        pages.append((draw(st.sampled_from([0.05, 0.05, 0.4, 2 * RESCAN_SECONDS])), page))
    return pages


@settings(max_examples=EXAMPLES, deadline=None)
@given(sequences(), st.sampled_from([("\n", ""), ("\r\n", ""), ("\n", "# EOF\n")]))
def test_pages_that_keep_the_rules_give_what_whole_scans_give(
    pages: list[tuple[float, dict[str, str]]], style: tuple[str, str]
) -> None:
    remembering, scanning = Watch(True), Watch(False)
    now, last, known = 0.0, b"", set(SERIES)
    for step, families in pages:
        if not families.keys() & SERIES.keys() <= known:  # found after so many pages, and so much time
            remembering.read_again(last, now)
            step = max(step, 1.5 * RESCAN_SECONDS)
        now, known = now + step, set(families)
        last = ("".join(families.values()) + style[1]).replace("\n", style[0]).encode()
        assert remembering.read(last, now) == scanning.read(last, now)


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
        monkeypatch.setattr(page_reader, "scan", scanning)

    def take(self) -> tuple[list[bytes], list[bytes]]:
        taken = self.searches, self.scans
        self.searches, self.scans = [], []
        return taken


def waiting(value: str, before: int = 3) -> bytes:
    return (filler(before) + group("m", f"m {value}") + group("n", "n 1") + filler(3, 1)).encode()


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


@pytest.mark.parametrize(
    ("fillers", "searches"),
    [((3, 9, 1), 1), ((3, SEARCH_RANGE, SEARCH_RANGE), 2)],
    ids=["a little: no search", "far: once"],
)
def test_a_group_that_has_moved_is_found(monkeypatch: pytest.MonkeyPatch, fillers: list[int], searches: int) -> None:
    counted, tail = Counted(monkeypatch), filler(SEARCH_RANGE, 2).encode()
    reader, binding, attributes, key = watch()
    values = []
    for step, before in enumerate(fillers):
        asyncio.run(reader.read(waiting(str(step), before) + tail, step * 0.1))
        binding.store(attributes, 0.0)
        values.append(attributes.get(key))
    assert values == [0.0, 1.0, 2.0]
    assert counted.take()[0] == [b"m"] * searches


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"# TYPE m gauge\nm 5\n", b"# TYPE m gauge\n# HELP m Help.\nm 6\n"),
        (b"# TYPE m gauge\nm 5\n", b"# HELP m Help.\n# TYPE m gauge\nm 6\n"),
        (b"# TYPE m gauge\n# HELP n Help.\n", b"# TYPE m gauge\n# HELP m Help.\nm 6\n"),
        (b"# TYPE m gauge\n# HELP mm Help.\n", b"# TYPE m gauge\n# HELP m Help.\nm 6\n"),
        (b"# TYPE mm gauge\n# HELP m Help.\n", b"# TYPE mm gauge\n# HELP mm Help.\nmm 6\n"),
        (b"# TYPE m gauge\n# HELP", b"# TYPE m gauge\n# HELP m Help.\nm 6\n"),
        (b"# TYPE m gauge\n# HELP m", b"# TYPE m gauge\n# HELP m Help.\nm 6\n"),
        (b"# TYPE m gauge\n\n# HELP n Help.\n", b"# TYPE m gauge\n\n# HELP m Help.\nm 6\n"),
        (b"# TYPE m gauge\n# A comment.\n# HELP m Help.\n", b"# TYPE m gauge\n# A comment.\n# HELP m Help.\nm 6\n"),
    ],
)
def test_a_header_may_get_lines_wherever_the_format_allows_them(before: bytes, after: bytes) -> None:
    """The lines of a header have any order; blank lines and comments may stand between them."""
    reader, binding, attributes, key = watch("mm" if b"mm 6" in after else "m")
    for at, page in ((0.0, before), (0.1, after)):
        asyncio.run(reader.read(page, at))
        binding.store(attributes, at)
    assert attributes.get(key) == 6.0


class Searched(bytes):
    """A page that counts how often a line's beginning or end is looked for in it."""

    times = 0

    def find(self, *args: Any) -> int:
        self.times += 1
        return super().find(*args)

    def rfind(self, *args: Any) -> int:
        self.times += 1
        return super().rfind(*args)


@pytest.mark.parametrize("sample", [b"m_total 6\n", b""], ids=["with a sample", "without"])
@pytest.mark.parametrize(("before", "after"), [(10 * MAX_BLOCK, 0), (0, 10 * MAX_BLOCK)], ids=["before", "after"])
def test_of_a_header_no_more_lines_are_looked_at_than_a_group_may_have(before: int, after: int, sample: bytes) -> None:
    """However many it has: a server may send megabytes of them."""
    line = b"# HELP m\n"
    page = Searched(line * (before // len(line)) + b"# TYPE m counter\n" + line * (after // len(line)) + sample)
    reader, binding, attributes, key = watch("m_total")
    asyncio.run(reader.read(page, 0.0))
    binding.store(attributes, 0.0)
    assert attributes.get(key) == (6.0 if sample else None)
    assert page.times < 2 * MAX_BLOCK // len(line)


def test_comments_in_a_group_are_no_lines_to_look_at() -> None:
    """However many it has: none of them ends the group."""
    reader, binding, attributes, key = watch()
    for step in range(3):
        text = b"# TYPE m gauge\nm %d\n%s# TYPE n gauge\nn 1\n" % (step, b"#\n" * (MAX_BLOCK // 3))
        page = Searched(text)
        asyncio.run(reader.read(page, step * 0.1))
        binding.store(attributes, 0.0)
        assert attributes.get(key) == step
        assert page.times < 100


def steps(reading: Coroutine[Any, Any, None]) -> int:
    """How often others have their turn while a page is read."""
    for count in range(10_000):
        try:
            reading.send(None)
        except StopIteration:
            return count
    raise AssertionError("it never ends")


def test_others_have_their_turn_while_many_known_groups_are_read() -> None:
    """However small each of them is."""
    names = [f"m{number}" for number in range(100)]
    many = [metric(name) for name in names]
    reader, attributes = MetricsReader(many), AttributeMap()
    for step in range(3):
        comments = "# a comment of a hundred characters or so, as a server may have it on its page of metrics\n" * 40
        page = "".join(group(name, f"{name} {step}\n{comments}") for name in names).encode()
        assert steps(reader.read(page, step * 0.1)) >= len(page) // MAX_BLOCK - 1
        for binding in many:
            binding.store(attributes, 0.0)
        assert {sample.value for _, sample in attributes.items()} == {step}


def test_a_header_is_read_up_to_a_length() -> None:
    """A name of megabytes is as good as none: no attribute's is so long."""
    longest = MAX_HEADER - len("# TYPE  ")
    for length, known in ((longest, True), (longest + 1, False), (MAX_HEADER, False)):
        name = b"m" * length
        assert page_reader._family(b"# TYPE " + name + b" gauge\n", 0) == (name if known else None)


@pytest.mark.parametrize(("interval", "pages"), [(0.05, 20), (0.1, 10), (1.0, 10), (5.0, 10)])
def test_a_family_that_appears_is_found_within_a_second_or_ten_pages(
    monkeypatch: pytest.MonkeyPatch, interval: float, pages: int
) -> None:
    counted = Counted(monkeypatch)
    reader, binding, attributes, key = watch("late")
    before, after = waiting("5"), waiting("5") + b"# TYPE late gauge\nlate 3\n"
    found = []
    for step in range(pages + 1):
        asyncio.run(reader.read(after if step else before, step * interval))
        binding.store(attributes, 0.0)
        found.append(attributes.get(key))
    assert found == [*[None] * pages, 3.0]
    assert len(counted.take()[0]) == 2, "no page between is searched as a whole"


def test_a_page_that_breaks_the_rule_hides_a_sample_until_the_whole_page_is_looked_at() -> None:
    reader, binding, attributes, key = watch()
    scattered = waiting("5") + b"m 8 1700000000000\n"
    found = []
    for step in range(RESCAN_PAGES + 1):
        asyncio.run(reader.read(scattered if step else waiting("5"), step * RESCAN_SECONDS))
        binding.store(attributes, 0.0)
        found.append(attributes.get(key))
    assert found == [*[5.0] * RESCAN_PAGES, 8.0]


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
        lines = tuple(f'm{{i="{index}"}} {step}' for index in range(MAX_BLOCK // 8))
        asyncio.run(reader.read(group("m", *lines).encode(), step * 0.1))
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
    for at, each in ((0.0, page), (0.1, page), (0.2, page.replace(line, sample))):
        asyncio.run(reader.read(each, at))
        binding.store(attributes, at)
    assert attributes.get(ACTIVE_MODELS) == ("sql",)


async def test_a_hundred_thousand_series_are_read_in_small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step does is bounded, and so is what is kept."""
    steps: list[int] = []

    def scanning(page: bytes, name: bytes, selectors: Sequence[object], start: int, end: int, most: int) -> object:
        steps.append(most * len(selectors))
        return scan(page, name, selectors, start, end, most)  # type: ignore[arg-type]

    monkeypatch.setattr(page_reader, "scan", scanning)
    count = 100_000
    page = b"# TYPE m gauge\n" + b"m 1\n" * (count - 1) + b"m 7 5\n"
    both = [metric("m"), metric("m", aggregation=Aggregation.SUM)]
    reader, attributes = MetricsReader(both), AttributeMap()
    await reader.read(page, 0.0)
    for each in both:
        each.store(attributes, 0.0)
    assert len(steps) >= 2 * count // page_reader.MAX_OFFERS
    assert set(steps) == {page_reader.MAX_OFFERS}
    assert [sample.value for _, sample in attributes.items()] == [7.0, 7.0]
