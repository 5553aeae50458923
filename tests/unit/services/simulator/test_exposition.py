import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.simulator.exposition import Histogram, escape, families, filler, number

SHORTEST = 1194
"""Bytes of one family for the model `m`."""


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0.0"), (3, "3.0"), (0.5, "0.5"), (1795226673.8, "1.7952266738e+09"), (10**7, "1e+07")]
)
def test_numbers_are_written_as_prometheus_client_does(value: float, text: str) -> None:
    assert number(value) == text


def test_label_values_are_escaped() -> None:
    assert escape('say "\\"\n') == 'say \\"\\\\\\"\\n'


def test_a_family_follows_its_values() -> None:
    template = '# HELP name Help.\n# TYPE name gauge\nname{a="x"} first\nname{a="y"} 0\n'
    [family] = families(template)
    assert family.render({"first": 1, "0": 0}) == template.replace("first", "1.0").replace(" 0\n", " 0.0\n")
    assert 'name{a="x"} 2.0\n' in family.render({"first": 2, "0": 0})
    [family] = families(template, integers=True)
    assert family.render({"first": 1, "0": 0}) == template.replace("first", "1")


def test_a_histogram_is_cumulative() -> None:
    histogram = Histogram((1.0, 2.0))
    [family] = families('# HELP name Help.\n# TYPE name histogram\nname{a="x",le="",z="é,\\"}"} times\n')
    assert 'name_count{a="x",z="é,\\"}"} 0.0\n' in family.render({"times": histogram})
    for value in (0.5, 1.5, 9.0):
        histogram.observe(value)
    assert family.render({"times": histogram}).splitlines()[2:] == [
        'name_bucket{a="x",le="1.0",z="é,\\"}"} 1.0',
        'name_bucket{a="x",le="2.0",z="é,\\"}"} 2.0',
        'name_bucket{a="x",le="+Inf",z="é,\\"}"} 3.0',
        'name_count{a="x",z="é,\\"}"} 3.0',
        'name_sum{a="x",z="é,\\"}"} 11.0',
    ]


def test_a_counter_can_say_since_when_it_counts() -> None:
    [family] = families('# HELP name_total Help.\n# TYPE name_total counter\nname_total{a="x"} 0\n', created=3)
    assert family.render({"0": 0}).splitlines()[3:] == [
        "# HELP name_created Help.",
        "# TYPE name_created gauge",
        'name_created{a="x"} 3.0',
    ]


@pytest.mark.parametrize(("size", "families"), [(3, 0), (500, 0), (SHORTEST, 1), (SHORTEST + 1, 0), (50_000, 41)])
def test_filler_has_the_size_that_is_asked_for_and_is_exposition_text(size: int, families: int) -> None:
    """One byte more than families take is too little for a comment."""
    text = filler("vllm:", "m", size)
    assert len(text) == size
    assert text.endswith("\n")
    found = list(text_string_to_metric_families(text))
    assert len(found) == families
    assert all(sample.value == 0 for family in found for sample in family.samples)


@pytest.mark.parametrize("size", [-5, 0, 2])
def test_no_room_no_filler(size: int) -> None:
    assert filler("vllm:", "m", size) == ""


def test_an_observation_at_a_bound_is_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 3.0):
        histogram.observe(value)
    assert histogram.counts == [1, 2, 1]
    assert (histogram.count, histogram.sum) == (4, 7.5)


def test_many_alike_can_be_observed_at_once() -> None:
    histogram = Histogram((1.0,))
    histogram.observe(0.5, 10)
    assert (histogram.counts, histogram.count, histogram.sum) == ([10, 0], 10, 5.0)
