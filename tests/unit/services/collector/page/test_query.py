"""Which measures make sense, and how they are written."""

from typing import Any

import pytest

from services.collector.page.query import AGGREGATIONS, Aggregation, Function, MetricQuery, QueryParameters
from services.collector.page.spec import MetricSpec, parse_spec
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems


def spec(text: str) -> MetricSpec:
    parsed = parse_spec(text)
    assert parsed is not None
    return parsed


def parameters(**given: Any) -> QueryParameters:
    problems = Problems()
    decoded = decode(given, QueryParameters, "parameters", problems, ignore_case=True)
    assert isinstance(decoded, QueryParameters), problems.errors
    return decoded


def query(name: str = "m", **given: Any) -> MetricQuery:
    return parameters(**given).query(spec(name), "metricName")


@pytest.mark.parametrize(
    ("given", "default"),
    [({}, Aggregation.NEWEST), ({"function": "rate"}, Aggregation.SUM), ({"function": "mean"}, Aggregation.SUM)],
)
def test_what_moves_is_summed_unless_something_else_is_asked_for(given: dict[str, str], default: Aggregation) -> None:
    function = Function(given.get("function", "value"))
    assert query(**given) == MetricQuery(MetricSpec("m"), function, default)


@pytest.mark.parametrize("function", list(Function))
@pytest.mark.parametrize("aggregation", list(Aggregation))
def test_an_aggregation_that_makes_no_sense_is_refused_with_those_that_do(
    function: Function, aggregation: Aggregation
) -> None:
    quantile = 0.5 if function is Function.QUANTILE else None
    if aggregation in AGGREGATIONS[function]:
        QueryParameters(function=function, aggregation=aggregation, quantile=quantile)
    else:
        with pytest.raises(ValueError, match=f"aggregation: '{aggregation}' isn't supported by function '{function}'"):
            QueryParameters(function=function, aggregation=aggregation, quantile=quantile)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"function": "median"}, "parameters.function: 'median' isn't one of 'value', 'rate', 'mean', 'quantile'"),
        ({"window": "10s"}, "window: function 'value' has none"),
        ({"function": "rate", "window": "0s"}, "parameters.window: '0s' is not above 0"),
        ({"function": "mean", "quantile": 0.5}, "quantile: function 'mean' has none"),
        ({"function": "quantile"}, "quantile: required by function 'quantile'"),
        ({"function": "quantile", "quantile": 95}, "parameters.quantile: 95 is above 1"),
        ({"emptyValue": float("nan")}, "parameters.emptyValue"),
    ],
)
def test_parameters_that_can_not_be_used_are_refused_by_name(given: dict[str, Any], problem: str) -> None:
    problems = Problems()
    assert decode(given, QueryParameters, "parameters", problems, ignore_case=True) is MISSING
    assert any(problem in str(error) for error in problems.errors), problems.errors


@pytest.mark.parametrize("end", ["_sum", "_count", "_bucket"])
def test_a_histogram_goes_by_its_own_name(end: str) -> None:
    with pytest.raises(ValueError, match=f"metricName: 'm{end}' is a series of a histogram; .* name, 'm'"):
        query(f"m{end}", function="mean")
    assert query(f"m{end}", function="rate").spec.name == f"m{end}"
    with pytest.raises(ValueError, match="metricName: function 'quantile' reads all buckets; leave the label 'le' out"):
        query('m{le="1"}', function="quantile", quantile=0.5)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "m{a=b}"),
        ({"aggregation": "max"}, "max(m{a=b})"),
        ({"function": "rate"}, "rate(m{a=b}, 10s)"),
        ({"function": "rate", "aggregation": "max", "window": "1m"}, "max(rate(m{a=b}, 60s))"),
        ({"function": "quantile", "quantile": 0.95}, "quantile(0.95, m{a=b}, 10s)"),
    ],
)
def test_a_measure_says_what_it_is(given: dict[str, Any], text: str) -> None:
    assert str(query("m{a=b}", **given)) == text
