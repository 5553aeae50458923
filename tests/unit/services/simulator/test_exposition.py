import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.simulator.exposition import Family, HistogramFamily, braces, filler, number
from services.simulator.histogram import Histogram


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.0"), (3, "3.0"), (0.5, "0.5"), (1795226673.8, "1.7952266738e+09"), (10**7, "1e+07")]
)
def test_numbers_are_written_as_prometheus_client_does(value: float, text: str) -> None:
    assert number(value) == text


def test_label_values_are_escaped_and_names_sorted() -> None:
    assert braces({"b": 'say "\\"\n', "a": "x"}) == '{a="x",b="say \\"\\\\\\"\\n"}'
    assert braces({}) == ""


def test_a_family_follows_its_values() -> None:
    family: Family[list[float]] = Family("name", "gauge", "Help.", [({"a": "x"}, lambda values: values[0])])
    assert family.render([1]) == '# HELP name Help.\n# TYPE name gauge\nname{a="x"} 1.0\n'
    assert family.render([2]).endswith(" 2.0\n")


def test_a_histogram_is_cumulative() -> None:
    histogram = Histogram((1.0, 2.0))
    family: HistogramFamily[Histogram] = HistogramFamily("name", "Help.", {"a": "x"}, lambda one: one)
    assert 'name_count{a="x"} 0.0\n' in family.render(histogram)
    for value in (0.5, 1.5, 9.0):
        histogram.observe(value)
    assert family.render(histogram).splitlines()[2:] == [
        'name_bucket{a="x",le="1.0"} 1.0',
        'name_bucket{a="x",le="2.0"} 2.0',
        'name_bucket{a="x",le="+Inf"} 3.0',
        'name_count{a="x"} 3.0',
        'name_sum{a="x"} 11.0',
    ]


@pytest.mark.parametrize("size", [3, 10, 500, 50_000])
def test_filler_has_the_size_that_is_asked_for_and_is_exposition_text(size: int) -> None:
    text = filler("vllm:", {"model_name": "m"}, size)
    assert len(text) == size
    assert text.endswith("\n")
    families = list(text_string_to_metric_families(text))
    assert bool(families) == (size > 1000)
    assert all(sample.value == 0 for family in families for sample in family.samples)


@pytest.mark.parametrize("size", [-5, 0, 2])
def test_no_room_no_filler(size: int) -> None:
    assert filler("vllm:", {}, size) == ""
