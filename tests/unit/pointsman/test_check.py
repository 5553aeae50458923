"""`pointsman check`: what it says of good and bad files, and how it exits."""

import hashlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pointsman.check import SHOWN, Checker, main
from pointsman.cli import main as pointsman
from services.watcher.file_origin import FileOrigin
from services.watcher.files import Root
from services.watcher.settings import WatcherSettings
from services.watcher.state import State
from shared.plugin import Registry
from shared.service import parse

ROOT = Path(__file__).parents[3]
FIXTURES = os.environ.get("POINTSMAN_FIXTURES", "")

CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: prefix-cache-scorer
  parameters: {lruCapacityPerServer: 1000}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""
ENDPOINTS = """\
endpoints:
- {name: a, address: 10.0.0.1, port: 8000, labels: {app: vllm}}
- {name: b, address: vllm-b, port: "8000", metricsHost: "10.0.0.2:9100"}
"""
RESOURCES = """\
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: default}
spec:
  selector: {matchLabels: {app: vllm}}
  targetPorts: [{number: 8000}]
  endpointPickerRef: {name: picker, port: {number: 9002}}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceObjective
metadata: {name: batch}
spec: {poolRef: {name: default}, priority: -1}
---
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModelRewrite
metadata: {name: canary}
spec:
  poolRef: {name: default}
  rules:
  - matches: [{model: {type: Exact, value: llama}}]
    targets: [{modelRewrite: llama-a, weight: 9}, {modelRewrite: llama-b, weight: 1}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: vllm}
"""


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.fixture
def good(tmp_path: Path) -> str:
    return write(tmp_path / "good.yaml", CONFIGURATION)


def test_a_good_configuration_says_what_it_runs(good: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([good]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[:3] == [
        f"{good}: ok",
        f"  revision               {hashlib.sha256(Path(good).read_bytes()).hexdigest()[:12]}",
        "  profile default        queue-scorer·2 + prefix-cache-scorer·3 → max-score-picker*",
    ]
    assert "  data producers         approx-prefix-cache-producer*\n" in out
    assert "  data source            metrics-data-source* → core-metrics-extractor*\n" in out
    assert out.endswith("  * added by default\n")
    assert err == (
        f"{good}: warning: plugins[1].parameters: lruCapacityPerServer is deprecated here; "
        "write it on approx-prefix-cache-producer\n"
    )


def test_a_bad_configuration_tells_every_error_with_path_and_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(
        tmp_path / "bad.yaml",
        "kind: EndpointPickerConfig\nplugins:\n- type: queue-skorer\n- type: queue-scorer\n  name: 5\n"
        "dataLayer:\n  staleMetrics:\n    after: -1s\n    after: -1s\n",
    )
    assert main([path]) == 1
    out, err = capsys.readouterr()
    assert out == f"{path}: 5 errors\n"
    assert err.splitlines() == [
        f"{path}: {line}"
        for line in (
            "apiVersion: required, and missing; "
            "'llm-d.ai/v1alpha1' or 'inference.networking.x-k8s.io/v1alpha1' is expected (line 1)",
            "plugins[0].type: 'queue-skorer' is no plugin type that is installed; "
            "did you mean 'queue-scorer'? (line 3)",
            "plugins[1].name: 5 is a number; a string is expected (line 5)",
            "dataLayer.staleMetrics.after: '-1s' is not above 0 (line 8)",
            "dataLayer.staleMetrics.after: duplicate key (line 9)",
        )
    ]


def test_an_endpoints_file_says_what_is_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "endpoints.yaml", ENDPOINTS)
    assert main([path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: ok",
        "  2 endpoints",
        "    default/a  10.0.0.1:8000  app=vllm",
        "    default/b  vllm-b:8000 (a host name)  metrics at 10.0.0.2:9100",
    ]


def test_an_empty_list_of_endpoints_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write(tmp_path / "endpoints.json", '{"endpoints": []}')]) == 0
    assert "  0 endpoints\n" in capsys.readouterr().out


def test_many_endpoints_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    entries = [{"name": f"e-{n}", "address": f"10.0.0.{n}", "port": 80} for n in range(1, SHOWN + 4)]
    assert main([write(tmp_path / "endpoints.json", json.dumps({"endpoints": entries}))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == f"  {SHOWN + 3} endpoints"
    assert lines[-1] == "    … and 3 more"


def test_resources_are_shown_and_what_is_left_out_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "resources.yaml", RESOURCES)
    assert main([path]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{path}: ok",
        "  pool default/default: ports 8000; selector app=vllm",
        "  objective batch: priority -1",
        "  rewrite canary: llama → llama-a·9 or llama-b·1",
        "  left out: Deployment vllm: not a kind that an endpoint picker reads",
    ]


def test_a_bad_endpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "endpoints.yaml", "endpoints:\n- {name: a, address: 10.0.0.1, port: 0}\n- {name: b}\n")
    assert main([path]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{path}: endpoints[0].port: 0 isn't a port; a number from 1 to 65535 is expected (line 2)",
        f"{path}: endpoints[1].address: required, and missing (line 3)",
        f"{path}: endpoints[1].port: required, and missing (line 3)",
    ]


def test_one_bad_file_among_several_makes_the_exit_code_1(good: str, tmp_path: Path) -> None:
    bad = write(tmp_path / "bad.yaml", "kind: [")
    assert main([good]) == 0
    assert main([good, bad]) == 1


def test_files_that_are_named_are_sets_of_their_own(good: str, tmp_path: Path) -> None:
    assert main([good, write(tmp_path / "other.yaml", CONFIGURATION)]) == 0


def test_the_files_of_a_directory_have_to_fit_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.yaml", ENDPOINTS)
    write(tmp_path / "b.yml", ENDPOINTS + "---\n" + CONFIGURATION)
    write(tmp_path / "c.json", json.dumps({"endpoints": []}))
    write(tmp_path / ".hidden.yaml", "[")
    write(tmp_path / "notes.txt", "[")
    assert main([str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert [line for line in out.splitlines() if not line.startswith(" ")] == [
        f"{tmp_path}/a.yaml: ok",
        f"{tmp_path}/b.yml: 2 errors",
        f"{tmp_path}/c.json: ok",
    ]
    assert err.splitlines()[:2] == [
        f"{tmp_path}/b.yml: document: endpoint 'default/a' is in {tmp_path}/a.yaml too",
        f"{tmp_path}/b.yml: document: endpoint 'default/b' is in {tmp_path}/a.yaml too",
    ]


def test_a_directory_that_fits_is_fine(tmp_path: Path, good: str) -> None:
    write(tmp_path / "endpoints.yaml", ENDPOINTS)
    assert main([str(tmp_path)]) == 0


def test_a_directory_without_files_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"{tmp_path}: document: no .yaml, .yml, .json file in it; `endpoints: []` in one says that there are none\n"
    )


def test_a_directory_is_judged_as_the_watcher_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Subdirectories aren't read, whatever their name; without `endpoints` in any file nobody knows what there is."""
    (tmp_path / "more.yaml").mkdir()
    write(tmp_path / "resources.yaml", RESOURCES)
    assert main([str(tmp_path)]) == 1
    nowhere = "endpoints: in no document; `endpoints: []` says that there are none"
    assert capsys.readouterr().err == f"{tmp_path}/resources.yaml: {nowhere}\n"
    bad = write(tmp_path / "bad.yaml", "endpoints: 5\n")
    assert main([str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{bad}: endpoints: 5 isn't a list of endpoints (line 1)\n"
    write(tmp_path / "bad.yaml", ENDPOINTS)
    assert main([str(tmp_path)]) == 0


async def test_what_the_watcher_refuses_to_start_with_is_what_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.yaml", ENDPOINTS)
    write(tmp_path / "b.yaml", ENDPOINTS + "- {name: c, address: 10.0.0.1, port: 0}\n---\n" + CONFIGURATION)
    write(tmp_path / "c.yaml", ENDPOINTS)
    (tmp_path / "d.yaml").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "e.yaml")
    write(tmp_path / "f.yaml", "endpoints: []\n" + "#" * 5000)
    flags = ["--max-file-size", "4Ki"]
    origin = FileOrigin(parse(WatcherSettings, [*flags, "--endpoints-file", str(tmp_path)], {}, "watcher"))
    state = State()
    origin.files.follow([Root(str(tmp_path), "--endpoints-file")])
    state.apply(await origin.files.load(), 0.0)
    refused = [f"{path}: {one}" for path, found in state.problems().items() for one in found]
    assert len(refused) == 6
    assert main([*flags, str(tmp_path)]) == 1
    told = [line for line in capsys.readouterr().err.splitlines() if ": warning: " not in line]
    assert sorted(told) == sorted(one.removesuffix(" (--endpoints-file)") for one in refused)


def test_too_many_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.json", '{"endpoints": []}')
    assert main(["--max-files", "3", str(tmp_path)]) == 0
    assert main(["--max-files", "2", str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"{tmp_path}: document: 3 files; at most 2 are read\n"


def test_too_much_on_standard_input_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ENDPOINTS.encode())))
    assert main(["--max-file-size", "20", "-"]) == 1
    assert capsys.readouterr().err == "standard input: document: is larger than 20 bytes\n"


def test_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ENDPOINTS.encode())))
    assert main(["-"]) == 0
    assert capsys.readouterr().out.startswith("standard input: ok\n  2 endpoints\n")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "document: can't be read: No such file or directory"),
        (b"a: \xff", "document: byte 3 isn't UTF-8: invalid start byte (line 1)"),
        (b"", "document: is empty; `endpoints: []` says that there are none"),
        (b"a: [", "document: not valid YAML: did not find expected node content (line 2)"),
        (b"[" * 300_000, "document: not valid YAML: nested deeper than 64 levels (line 1)"),
        (b"pods: []", "document: neither `endpoints` nor `kind` is in it (line 1)"),
        (
            b"kind: EndpointPickerConfg\napiVersion: llm-d.ai/v1alpha1\n",
            "kind: 'EndpointPickerConfg' isn't known; did you mean 'EndpointPickerConfig'? (line 1)",
        ),
    ],
)
def test_what_is_no_document_is_an_error_not_a_traceback(
    content: bytes | None, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file.yaml"
    if content is not None:
        path.write_bytes(content)
    assert main([str(path)]) == 1
    assert capsys.readouterr().err == f"{path}: {problem}\n"


def test_a_configuration_without_its_kind_is_judged_as_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "file.yaml", "plugins: [{type: queue}]\n")
    assert main([path]) == 1
    assert [line.removeprefix(f"{path}: ").split(":")[0] for line in capsys.readouterr().err.splitlines()] == [
        "kind",
        "apiVersion",
        "plugins[0].type",
    ]


def test_what_is_missing_on_this_machine_alone_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(
        tmp_path / "file.yaml",
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: metrics-data-source\n"
        "  parameters: {scheme: https, insecureSkipVerify: false, caCertPath: /nowhere/ca.pem}\n",
    )
    assert main([path]) == 0
    assert (
        "warning: plugins[0]: can't be made on this machine: caCertPath: '/nowhere/ca.pem'" in capsys.readouterr().err
    )


def test_json_is_for_machines(good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bad = write(tmp_path / "bad.yaml", "plugins: [{type: queue}]\nkind: EndpointPickerConfig\n")
    endpoints = write(tmp_path / "endpoints.yaml", ENDPOINTS)
    assert main(["--format", "json", good, bad, endpoints]) == 1
    out, err = capsys.readouterr()
    answer: dict[str, Any] = json.loads(out)
    assert err == ""
    assert answer["ok"] is False
    first, second, third = answer["files"]
    assert (first["origin"], first["ok"], first["errors"], second["ok"], third["ok"]) == (good, True, [], False, True)
    assert first["configuration"]["profiles"][0]["scorers"][0] == {
        "plugin": {"name": "queue-scorer", "type": "queue-scorer", "added": False},
        "weight": 2.0,
    }
    assert first["configuration"]["tiers"]["collector"] == ["metrics-data-source", "core-metrics-extractor"]
    assert first["warnings"][0]["path"] == "plugins[1].parameters"
    assert {one["path"] for one in second["errors"]} == {"apiVersion", "plugins[0].type"}
    assert [one["id"] for one in third["endpoints"]] == ["default/a", "default/b"]


@pytest.mark.parametrize("argv", [[], ["--zebra"], ["--format", "xml", "file"], ["--max-file-size", "x", "file"]])
def test_a_mistake_in_the_arguments_is_exit_code_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2


def test_it_is_a_command(good: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pointsman", "check", good, "missing.yaml"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.startswith(f"{good}: ok\n")
    assert done.stderr.endswith("missing.yaml: document: can't be read: No such file or directory\n")
    assert "Traceback" not in done.stderr


@pytest.fixture
def published() -> list[str]:
    """Configurations that others have published."""
    if not FIXTURES:
        pytest.skip("POINTSMAN_FIXTURES isn't set: it names the folder with configs/")
    paths = sorted(map(str, (Path(FIXTURES) / "configs").glob("*.yaml")))
    assert paths
    return paths


def test_published_configurations_are_described_or_refused(
    published: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    checker = Checker(Registry.installed(), allow_experimental=True)
    for path in published:
        one = checker.file(path)
        assert one.ok is (one.configuration is not None)
        assert one.ok is not bool(one.errors)
        assert pointsman(["check", "--allow-experimental-plugins", path]) == (0 if one.ok else 1)
        out, err = capsys.readouterr()
        assert out.startswith(f"{path}: {'ok' if one.ok else len(one.errors)}")
        assert err.splitlines()[: len(one.errors)] == [f"{path}: {problem}" for problem in one.errors]


def test_the_command_takes_all_published_configurations_at_once(published: list[str]) -> None:
    checker = Checker(Registry.installed())
    done = subprocess.run(
        [sys.executable, "-m", "pointsman", "check", *published],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
        check=False,
    )
    said = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert [line.endswith(": ok") for line in said] == [checker.file(path).ok for path in published]
    assert done.returncode == (0 if all(line.endswith(": ok") for line in said) else 1)
    assert "Traceback" not in done.stdout + done.stderr
