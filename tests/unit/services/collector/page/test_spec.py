"""The grammar of metric specifications: what is accepted, as what, and what is refused."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.collector.page.spec import MetricSpec, SpecError, parse_spec


@pytest.mark.parametrize(
    ("text", "name", "labels"),
    [
        *(("m", "m", {}), (" m ", "m", {}), ("vllm:num_requests_waiting", "vllm:num_requests_waiting", {})),
        *(("m{a=v}", "m", {"a": "v"}), ('m{a="v"}', "m", {"a": "v"}), ("m{a='v'}", "m", {"a": "v"})),
        *(("m{a=v,b=w}", "m", {"a": "v", "b": "w"}), ('m{a=v,b="w"}', "m", {"a": "v", "b": "w"})),
        *(("  m  {  a  =  v  ,  b  =  w  }  ", "m", {"a": "v", "b": "w"}), ("m{}", "m", {})),
        *(("m{a=v,}", "m", {"a": "v"}), ('m{a=""}', "m", {"a": ""}), ('m{a="x, y} z"}', "m", {"a": "x, y} z"})),
        (r'm{a="say \"hi\"\\\n"}', "m", {"a": 'say "hi"\\\n'}),
        ("m{a=meta-llama/Llama-3.1-8B}", "m", {"a": "meta-llama/Llama-3.1-8B"}),
        ("m{__name__=other,a=v}", "m", {"a": "v"}),
    ],
)
def test_a_specification_is_a_name_and_labels_that_are_equal(text: str, name: str, labels: dict[str, str]) -> None:
    assert parse_spec(text) == MetricSpec(name, tuple(labels.items()))


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_an_empty_specification_switches_the_metric_off(text: str) -> None:
    assert parse_spec(text) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *(("ma=v}", "is unexpected"), ("m{a=v", "a comma or }"), ("m{", "a label name")),
        *(("m{a}", "= is expected after the label 'a'"), ("m{=v}", "a label name")),
        *(("m{a=}", "a value is expected for the label 'a'"), ("m{ = }", "a label name")),
        *(("m{a=v}x", "'x' is unexpected"), ("{a=v}", "a metric name"), ("m{a=v b=w}", "a comma or }")),
        *(("m{a=v,,b=w}", "a label name"), ("m{a!=v}", "!= isn't supported"), ('m{a=~"v.*"}', "=~ isn't supported")),
        *(('m{a!~"v"}', "!~ isn't supported"), ("m{a=v=w}", "a comma or }"), ("m{a=v,a=w}", "given twice")),
        *(('m{a="v}', "a value is expected"), ("m[5m]", "is unexpected"), ("rate(m[5m])", "is unexpected")),
        *(
            ("m + n", "is unexpected"),
            ("m offset 5m", "is unexpected"),
            ("9m", "a metric name"),
            ("m{9=v}", "a label name"),
        ),
        ("m-n", "is unexpected"),
    ],
)
def test_what_is_no_specification_is_refused_with_the_place_and_the_reason(text: str, why: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(text)
    assert repr(text) in str(caught.value)
    assert why in str(caught.value)
    assert "at character" in str(caught.value)


def test_a_series_matches_when_it_has_all_the_labels_and_more() -> None:
    spec = parse_spec("m{a=v,b=w}")
    assert spec is not None
    assert spec.matches({"a": "v", "b": "w", "c": "x"})
    assert not spec.matches({"a": "v"})
    assert not spec.matches({"a": "v", "b": "W"})


names = st.from_regex(r"\A[a-zA-Z_:][a-zA-Z0-9_:]{0,8}\Z")
labels = st.dictionaries(st.from_regex(r"\A[a-zA-Z][a-zA-Z0-9_]{0,6}\Z"), st.text(max_size=8), max_size=3)


@settings(max_examples=40)
@given(names, labels)
def test_a_specification_reads_back_what_it_prints(name: str, matchers: dict[str, str]) -> None:
    spec = MetricSpec(name, tuple(matchers.items()))
    assert parse_spec(str(spec)) == spec


@settings(max_examples=60)
@given(st.text(max_size=30))
def test_any_text_is_a_specification_or_an_error_of_ours(text: str) -> None:
    try:
        parse_spec(text)
    except SpecError:
        pass
