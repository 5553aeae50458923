"""`pointsman probe` fails when a metric that the user has named isn't on the page, and says what comes near."""

import json
from pathlib import Path
from typing import Any

import pytest

from pointsman.probe import main
from pointsman.probe_missing import COMPARED, sample_names, similar

PAGE = """\
# HELP vllm:num_requests_waiting Requests that wait.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{model_name="m"} 3
vllm:num_requests_running{model_name="m"} 2
ttft_seconds_bucket{le="+Inf"} 1
ttft_seconds_sum 1
ttft_seconds_count 1
"""
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
OWN = "- {type: core-metrics-extractor, parameters: {defaultEngine: mine, engineConfigs: [{name: mine, %s}]}}\n"
METRIC = "- {type: prometheus-metric, parameters: {%s}}\n"


def missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *arguments: str, plugins: str = "", page: str = PAGE
) -> dict[str, Any]:
    """What is missing by its specification, each with its outcome and similar names."""
    (tmp_path / "page.txt").write_text(page)
    (tmp_path / "config.yaml").write_text(HEAD + plugins)
    config = ["--config", str(tmp_path / "config.yaml")] if plugins else []
    code = main(["--format=json", f"file:{tmp_path}/page.txt", *config, *arguments])
    document = json.loads(capsys.readouterr().out)
    found = [each for page in document["pages"] for each in page["missing"]]
    assert (code, document["ok"]) == ((1, False) if found else (0, True))
    return {entry["specification"]: (entry["outcome"], *entry["similar"]) for entry in found}


@pytest.mark.parametrize(
    ("plugins", "expected"),
    [
        (
            OWN % "queuedRequestsSpec: vllm:num_request_waiting",
            {"vllm:num_request_waiting": ("absent", "vllm:num_requests_waiting")},
        ),
        (OWN % "extends: vllm, queuedRequestsSpec: vllm:num_requests_waiting", {}),
        (
            OWN % "extends: vllm, customMetrics: [{attributeKey: A, metricSpec: 'vllm:num_requests_running{x=1}'}]",
            {"vllm:num_requests_running{x=1}": ("no series",)},
        ),
        (OWN % "queuedRequestsSpec: jobs", {"jobs": ("absent",)}),
        (METRIC % "metricName: ttft_seconds, function: mean", {}),
        (
            METRIC % "metricName: tpot_seconds, function: mean",
            {
                "tpot_seconds_sum": ("absent", "ttft_seconds_sum"),
                "tpot_seconds_count": ("absent", "ttft_seconds_count"),
            },
        ),
        ("- type: core-metrics-extractor\n", {}),
    ],
    ids=["misspelt", "there", "other labels", "of an engine that isn't the page's", "made", "not made", "built in"],
)
def test_what_a_configuration_names_and_the_page_lacks_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], plugins: str, expected: dict[str, Any]
) -> None:
    assert missing(tmp_path, capsys, plugins=plugins) == expected


def test_what_a_flag_names_and_the_page_lacks_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flag = "--total-queued-requests-metric=vllm:waiting_requests_num"
    found = missing(tmp_path, capsys, "--", flag)
    assert found == {"vllm:waiting_requests_num": ("absent", "vllm:num_requests_waiting", "vllm:num_requests_running")}


def test_an_engine_that_the_endpoint_is_said_not_to_run_lacks_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not missing(tmp_path, capsys, "--engine", "vllm", plugins=OWN % "queuedRequestsSpec: jobs")


TWO_SOURCES = """\
- {name: one, type: metrics-data-source}
- {name: two, type: metrics-data-source, parameters: {path: /other}}
- {name: depths, type: prometheus-metric, parameters: {metricName: depth}}
- {name: jobs, type: prometheus-metric, parameters: {metricName: jobs}}
dataLayer:
  sources:
  - {pluginRef: one, extractors: [{pluginRef: depths}]}
  - {pluginRef: two, extractors: [{pluginRef: jobs}]}
"""


@pytest.mark.parametrize(("page", "expected"), [("depth 1\n", set()), ("else 1\n", {"depth", "jobs"})])
def test_a_source_that_finds_nothing_on_a_shared_page_lacks_it_only_if_no_other_finds_anything(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], page: str, expected: set[str]
) -> None:
    assert missing(tmp_path, capsys, plugins=TWO_SOURCES, page=page).keys() == expected


def test_as_text_it_is_told_beside_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "page.txt").write_text(PAGE)
    flag = "--total-queued-requests-metric=vllm:num_request_waiting"
    assert main([f"file:{tmp_path}/page.txt", "--", flag]) == 1
    output = capsys.readouterr()
    assert "RunningRequestsSize" in output.out
    assert "vllm:num_request_waiting: absent; similar names: vllm:num_requests_waiting" in output.err


def test_names_are_like_each_other_by_a_slip_or_by_half_their_words() -> None:
    names = ["vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:cache_config_info"]
    assert sample_names(PAGE.encode())[:2] == names[:2]
    assert similar("vllm:num_requests_waitng", names) == (names[0],)
    assert similar("vllm:requests_waiting", names) == (names[0],)
    assert similar("jobs", names) == ()


def test_only_the_first_names_of_a_long_page_are_compared() -> None:
    others = [f"n{number}" for number in range(COMPARED)]
    for missing, name in (("vllm:num_requests_waitng", "vllm:num_requests_waiting"), ("c:b_a", "b:a_c")):
        assert similar(missing, [*others[1:], name]) == (name,)
        assert similar(missing, [*others, name]) == ()
