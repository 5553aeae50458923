"""`pointsman probe` without a network: what it is pointed at, and what it says of saved pages."""

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pointsman.probe import main
from pointsman.probe_options import SavedPage, Server, parse_target
from pointsman.probe_report import Attribute, Extraction, Page, lines
from tests.unit.services.collector.pages import recorded_vllm_page

SMALL = """\
vllm:num_requests_waiting{model_name="m"} 3
vllm:num_requests_running{model_name="m"} NaN
"""
HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
MINE = f"""\
{HEAD}plugins:
- type: core-metrics-extractor
  parameters:
    engineLabelKey: engine
    defaultEngine: mine
    engineConfigs: [{{name: mine, queuedRequestsSpec: 'jobs{{state=queued}}'}}]
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10.0.0.1:8000", "http://10.0.0.1:8000/metrics"),
        ("http://10.0.0.1:8000/", "http://10.0.0.1:8000/metrics"),
        ("vllm-0.pool:8000/prometheus/metrics", "http://vllm-0.pool:8000/prometheus/metrics"),
        ("https://vllm", "https://vllm:443/metrics"),
        ("http://vllm/m?a=b", "http://vllm:80/m?a=b"),
        ("[fd00::1]:8000", "http://[fd00::1]:8000/metrics"),
        ("-", SavedPage(path="-")),
        ("file:page.txt", SavedPage(path="page.txt")),
        ("file:/tmp/page.txt", SavedPage(path="/tmp/page.txt")),
        ("file:///tmp/a%20page.txt", SavedPage(path="/tmp/a page.txt")),
        ("./page.txt", SavedPage(path="./page.txt")),
        ("/tmp/page.txt", SavedPage(path="/tmp/page.txt")),
    ],
)
def test_a_server_goes_by_its_url_and_without_a_path_by_its_metrics_page_and_a_saved_page_by_its_path(
    text: str, expected: str | SavedPage
) -> None:
    target = parse_target(text)
    assert (target.url("/metrics") if isinstance(target, Server) else target) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ftp://10.0.0.1", "'ftp' isn't a supported scheme"),
        ("http://", "isn't the URL of a server"),
        ("http://10.0.0.1:none", "isn't a URL"),
        ("http://10.0.0.1:70000", "isn't a URL"),
        ("http://10.0.0.1:0", "isn't the URL of a server"),
        ("http://user:secret@10.0.0.1", "a URL with a user isn't supported"),
        ("file:", "names no file"),
        ("http://[fd00::1", "isn't a URL"),
        ("http://modèles:80", "isn't the URL of a server"),
        ("http://10.0.0.1/a b", "percent-encode it"),
    ],
)
def test_what_is_no_url_is_refused_with_what_would_be_right(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        parse_target(text)


class Probe:
    """Runs the command on a saved page, and has what it wrote."""

    def __init__(self, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._directory = directory
        self._capsys = capsys
        self.out = self.err = ""

    def config(self, text: str) -> str:
        path = self._directory / "config.yaml"
        path.write_text(text)
        return str(path)

    def __call__(self, page: str | bytes, *arguments: str) -> int:
        path = self._directory / "page.txt"
        path.write_bytes(page if isinstance(page, bytes) else page.encode())
        try:
            return main([f"file:{path}", *arguments])
        finally:
            self.out, self.err = self._capsys.readouterr()

    def page(self, page: str | bytes, *arguments: str, code: int = 0) -> dict[str, Any]:
        """The one page of the JSON that the command prints."""
        assert self(page, "--format=json", *arguments) == code
        document = json.loads(self.out)
        assert document["ok"] == (code == 0)
        found: dict[str, Any]
        (found,) = document["pages"]
        return found


@pytest.fixture
def probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Probe:
    return Probe(tmp_path, capsys)


def values(extraction: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each["value"] for each in extraction["attributes"]}


def test_the_recorded_page_of_vllm_gives_its_values(probe: Probe) -> None:
    page = probe.page(recorded_vllm_page())
    (core,) = page["extractions"]
    assert core["decided"]["engine"] == "vllm"
    assert values(core) == {
        "WaitingQueueSize": 0.0,
        "RunningRequestsSize": 0.0,
        "KVCacheUsagePercent": 0.0,
        "CacheBlockSize": 128.0,
        "CacheNumBlocks": 4096.0,
        "ActiveModels": None,
        "WaitingModels": None,
        "MaxActiveModels": None,
    }
    assert page["bytes"] == len(recorded_vllm_page())


@pytest.mark.parametrize(
    ("page", "rows", "columns_found"),
    [
        (
            SMALL,
            [
                ["WaitingQueueSize", "3", "found", "vllm:num_requests_waiting"],
                ["RunningRequestsSize", "–", "invalid", "vllm:num_requests_running"],
            ],
            ["vllm:num_requests_running (invalid)", "vllm:lora_requests_info (absent)"],
        ),
        ("", [], ["read, 0 bytes", "\n  0 of 5 found; not: vllm:num_requests_waiting (absent), "]),
        (
            '{"data": [{"id": "llama"}, {"id": "sql", "parent": "llama"}]}',
            [["/v1/models", "llama,", "sql", "found", "data[].id"]],
            ["models-data-source → models-data-extractor", "models: 2, 1 of them adapters"],
        ),
    ],
    ids=["some families", "nothing on it", "a list of models"],
)
def test_a_saved_page_is_read_and_says_what_is_on_it(
    probe: Probe, page: str, rows: list[list[str]], columns_found: list[str]
) -> None:
    assert probe(page) == 0
    assert [row for row in rows if row not in [line.split() for line in probe.out.splitlines()]] == []
    assert [each for each in columns_found if each not in probe.out] == []


def test_durations_and_sizes_are_above_0_and_as_small_as_one_likes(probe: Probe) -> None:
    assert probe("", "--interval", "100ms", "--timeout", "500ms", "--page-limit", "1") == 0


def test_a_page_comes_from_standard_input_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(SMALL.encode())))
    assert main(["-"]) == 0
    assert capsys.readouterr().out.startswith(f"standard input: read, {len(SMALL)} bytes")


def test_the_engine_can_be_given_and_a_label_chooses_it_as_it_does_for_an_endpoint(probe: Probe) -> None:
    page = SMALL + "sglang:num_queue_reqs 8\n"
    found = probe.page(page, "--engine", "sglang")
    (core,) = found["extractions"]
    assert core["decided"] == {"engine": "sglang", "engine_chosen_by": "--engine"}
    assert values(core)["WaitingQueueSize"] == 8.0
    by_label = probe.page(page, "--label", "llm-d.ai/engine-type=sglang")
    assert by_label["extractions"][0]["decided"]["engine"] == "sglang"


UNFED = HEAD + "plugins: [{type: models-data-extractor}]\ndataLayer: {injectDefaults: false}\n"


@pytest.mark.parametrize(
    ("config", "engine", "problem"),
    [
        ("", "vlm", "--engine: 'vlm' isn't a known engine; known: sglang, "),
        (UNFED, "vllm", "--engine: 'vllm', but no source of the configuration feeds a core-metrics-extractor"),
    ],
)
def test_an_engine_that_does_not_exist_or_is_for_nobody_is_a_mistake_in_the_arguments(
    probe: Probe, config: str, engine: str, problem: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        probe(SMALL, "--engine", engine, *(["--config", probe.config(config)] if config else []))
    assert caught.value.code == 2
    assert problem in probe.err


def test_a_configuration_says_what_is_read(probe: Probe) -> None:
    config = probe.config(MINE)
    page = 'jobs{state="queued"} 7\n' + SMALL
    found = probe.page(page, "--config", config)
    (core,) = found["extractions"]
    assert core["extractor"] == "core-metrics-extractor"
    assert core["decided"]["engine"] == "mine"
    assert values(core) == {"WaitingQueueSize": 7.0}
    found = probe.page(page, "--config", config, "--engine", "vllm")
    assert values(found["extractions"][0])["WaitingQueueSize"] == 3.0


def test_a_page_is_read_by_the_source_that_gives_its_format_and_without_one_that_is_said(probe: Probe) -> None:
    config = probe.config(MINE + "- type: models-data-extractor\n")
    found = probe.page('{"data": []}', "--config", config)
    assert found["source"] == "models-data-source"
    probe.config(MINE)
    found = probe.page('{"data": []}', "--config", config, code=1)
    assert found["error"] == "its format is OpenAI list of models, which no source of the configuration gives"


def test_the_collectors_flags_are_given_behind_two_dashes(probe: Probe) -> None:
    page = 'nv_trt_llm_request_metrics{request_type="max"} 9\n'
    flag = "--total-queued-requests-metric=nv_trt_llm_request_metrics{request_type=max}"
    found = probe.page(page, "--", flag)
    assert values(found["extractions"][0])["WaitingQueueSize"] == 9.0
    assert probe(page, "--", "--total-queued-request-metric=x") == 1
    assert "did you mean '--total-queued-requests-metric'" in probe.err


def test_a_configuration_that_can_not_be_used_is_told_in_full(probe: Probe) -> None:
    config = probe.config(MINE.replace("jobs{state=queued}", "jobs{"))
    assert probe(SMALL, "--config", config) == 1
    assert f"{config}: plugins[0].parameters" in probe.err
    assert probe(SMALL, "--config", "/nowhere/config.yaml") == 1
    assert "can't be read" in probe.err


def test_a_file_that_is_not_there_is_a_reason(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["/nowhere/page"]) == 1
    assert capsys.readouterr().err == "/nowhere/page: no page: can't be read: No such file or directory\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "URL: required, and missing"),
        (["ftp://x"], "'ftp' isn't a supported scheme"),
        (["-", "--count", "2"], "--count: 2 with a saved page, which is read once"),
        (["x:1", "--count", "0"], "--count: 0 is"),
        (["x:1", "--interval", "soon"], "--interval: 'soon'"),
        (["x:1", "--timeout", "0s"], "--timeout: "),
        (["x:1", "--page-limit", "-1"], "--page-limit: "),
        (["x:1", "--label", "vllm"], "--label: 'vllm' isn't a label such as llm-d.ai/engine-type=vllm"),
        (["x:1", "--config", "c.yaml", "--verify"], "--verify: the sources of a configuration have TLS settings"),
        (["x:1", "--client-key", "k", "--", "--interval=1s"], "--client-key: the sources of a configuration have TLS"),
        (["https://x", "--ca-cert", "/nowhere/ca"], "caCertPath: '/nowhere/ca' can't be used"),
        (["https://x", "--client-cert", "/nowhere/a"], "clientCertPath and clientKeyPath: give both or none"),
    ],
)
def test_mistakes_in_the_arguments_are_told(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert problem in capsys.readouterr().err


def test_a_report_has_a_row_for_each_attribute_and_says_what_is_missing() -> None:
    attributes = (
        Attribute(name="A", specification="a or b", outcome="found", value=0.123456789),
        Attribute(name="Blocks", specification="info", outcome="found", value=1234567.0),
        Attribute(name="Size", specification="info", outcome="invalid"),
        Attribute(name="Names", specification="names", outcome="found", value=()),
        Attribute(name="Gone", specification="gone", outcome="absent"),
    )
    page = Page(
        source="s",
        url="http://x:1/metrics",
        ok=True,
        scrapes=2,
        bytes=51234,
        seconds=0.00412,
        extractions=(Extraction(extractor="e", decided={"engine": "vllm"}, attributes=attributes),),
    )
    assert lines(page) == [
        "http://x:1/metrics: read, 51 234 bytes in 4.1ms, the last of 2",
        "",
        "s → e",
        "  engine: vllm",
        "  attribute  value     outcome  specification",
        "  A          0.123457  found    a or b",
        "  Blocks     1234567   found    info",
        "  Size       –         invalid  info",
        "  Names      none      found    names",
        "  Gone       –         absent   gone",
        "  3 of 4 found; not: gone (absent)",
    ]
    once = Page(source="s", url="http://x:1/metrics", ok=True, scrapes=1, bytes=51234, seconds=0.00412)
    assert lines(once) == ["http://x:1/metrics: read, 51 234 bytes in 4.1ms"]
