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
from services.watcher.file_provider import FileProvider
from services.watcher.files import Root
from services.watcher.settings import WatcherSettings
from services.watcher.state import State
from shared.plugin import Plugin, Registry, Role
from shared.service.settings import parse
from shared.tasks import exhaust

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


class Run:
    """Calls the command, and has what it wrote."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        code = main(arguments)
        self.out, self.err = self._capsys.readouterr()
        return code


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(capsys)


def test_a_good_configuration_says_what_it_runs(good: str, check: Run) -> None:
    assert check(good) == 0
    assert check.out.splitlines()[:3] == [
        f"{good}: ok",
        f"  revision               {hashlib.sha256(Path(good).read_bytes()).hexdigest()[:12]}",
        "  profile default        queue-scorer·2 + prefix-cache-scorer·3 → max-score-picker*",
    ]
    assert "  data producers         approx-prefix-cache-producer*\n" in check.out
    assert "  data source            metrics-data-source* → core-metrics-extractor*\n" in check.out
    assert check.out.endswith("  * added by default\n")
    assert check.err == (
        f"{good}: warning: plugins[1].parameters: lruCapacityPerServer is deprecated here; "
        "write it on approx-prefix-cache-producer\n"
    )


def test_a_bad_configuration_tells_every_error_with_path_and_line(tmp_path: Path, good: str, check: Run) -> None:
    path = write(
        tmp_path / "bad.yaml",
        "kind: EndpointPickerConfig\nplugins:\n- type: queue-skorer\n- type: queue-scorer\n  name: 5\n"
        "dataLayer:\n  staleMetrics:\n    after: -1s\n    after: -1s\n",
    )
    assert check(path) == 1
    assert check.out == f"{path}: 5 errors\n"
    assert check.err.splitlines() == [
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
    assert check(good, path) == 1, "one bad file among several"
    assert check(good, write(tmp_path / "other.yaml", CONFIGURATION)) == 0, "files are sets of their own"


@pytest.mark.parametrize(
    ("name", "text", "shown"),
    [
        (
            "endpoints.yaml",
            ENDPOINTS,
            [
                "  2 endpoints",
                "    default/a  10.0.0.1:8000  app=vllm",
                "    default/b  vllm-b:8000 (a host name)  metrics at 10.0.0.2:9100",
            ],
        ),
        ("endpoints.json", '{"endpoints": []}', ["  0 endpoints"]),
        (
            "resources.yaml",
            RESOURCES,
            [
                "  pool default/default: ports 8000; selector app=vllm",
                "  objective batch: priority -1",
                "  rewrite canary: llama → llama-a·9 or llama-b·1",
                "  left out: Deployment vllm: not a kind that an endpoint picker reads",
            ],
        ),
    ],
)
def test_a_file_of_endpoints_or_resources_says_what_is_in_it(
    tmp_path: Path, check: Run, name: str, text: str, shown: list[str]
) -> None:
    path = write(tmp_path / name, text)
    assert check(path) == 0
    assert check.out.splitlines() == [f"{path}: ok", *shown]


def test_a_file_doesnt_control_the_terminal(tmp_path: Path, check: Run) -> None:
    good = '{name: a, address: 10.0.0.1, port: 80, labels: {x: "\\e[2Jb\\nall: ok"}}'
    bad = '{name: a, address: 10.0.0.1, port: 80, "\\e[2J\\nb": 1}'
    for entry in (good, bad):
        check(write(tmp_path / "endpoints.yaml", f"endpoints: [{entry}]"))
        assert "\x1b" not in check.out + check.err
        assert "\\x1b[2J" in check.out + check.err
        assert not any(line.startswith(("all", "b")) for line in check.out.splitlines() + check.err.splitlines())


def test_many_endpoints_are_counted(tmp_path: Path, check: Run) -> None:
    entries = [{"name": f"e-{n}", "address": f"10.0.0.{n}", "port": 80} for n in range(1, SHOWN + 4)]
    assert check(write(tmp_path / "endpoints.json", json.dumps({"endpoints": entries}))) == 0
    assert check.out.splitlines()[1] == f"  {SHOWN + 3} endpoints"
    assert check.out.splitlines()[-1] == "    … and 3 more"


def test_the_files_of_a_directory_have_to_fit_together(tmp_path: Path, check: Run) -> None:
    write(tmp_path / "a.yaml", ENDPOINTS)
    write(tmp_path / "b.yml", ENDPOINTS + "---\n" + CONFIGURATION)
    write(tmp_path / "c.json", json.dumps({"endpoints": []}))
    write(tmp_path / ".hidden.yaml", "[")
    write(tmp_path / "notes.txt", "[")
    assert check(str(tmp_path)) == 1
    assert [line for line in check.out.splitlines() if not line.startswith(" ")] == [
        f"{tmp_path}/a.yaml: ok",
        f"{tmp_path}/b.yml: 2 errors",
        f"{tmp_path}/c.json: ok",
    ]
    assert check.err.splitlines()[:2] == [
        f"{tmp_path}/b.yml: document: endpoint 'default/{name}' is in {tmp_path}/a.yaml too" for name in "ab"
    ]


def test_a_directory_is_judged_as_the_watcher_does(tmp_path: Path, check: Run) -> None:
    """Subdirectories aren't read, whatever their name; without `endpoints` in any file nobody knows what there is."""
    (tmp_path / "more.yaml").mkdir()
    assert check(str(tmp_path)) == 1
    assert check.err == (
        f"{tmp_path}: document: no .yaml, .yml, .json file in it; `endpoints: []` in one says that there are none\n"
    )
    write(tmp_path / "resources.yaml", RESOURCES)
    assert check(str(tmp_path)) == 1
    nowhere = "endpoints: in no document; `endpoints: []` says that there are none"
    assert check.err == f"{tmp_path}/resources.yaml: {nowhere}\n"
    bad = write(tmp_path / "bad.yaml", "endpoints: 5\n")
    assert check(str(tmp_path)) == 1
    assert check.err == f"{bad}: endpoints: 5 isn't a list of endpoints (line 1)\n"
    write(tmp_path / "bad.yaml", ENDPOINTS)
    assert check(str(tmp_path)) == 0
    assert check("--max-files", "2", str(tmp_path)) == 0
    assert check("--max-files", "1", str(tmp_path)) == 1
    assert check.err == f"{tmp_path}: document: 2 files; at most 1 are read\n"
    assert check("x" * 256) == 1
    assert check.err.endswith("document: can't be read: File name too long\n")


async def test_what_the_watcher_refuses_to_start_with_is_what_is_told(tmp_path: Path, check: Run) -> None:
    write(tmp_path / "a.yaml", ENDPOINTS)
    write(tmp_path / "b.yaml", ENDPOINTS + "- {name: c, address: 10.0.0.1, port: 0}\n---\n" + CONFIGURATION)
    write(tmp_path / "c.yaml", ENDPOINTS)
    (tmp_path / "d.yaml").write_bytes(b"\xff")
    os.mkfifo(tmp_path / "e.yaml")
    write(tmp_path / "f.yaml", "endpoints: []\n" + "#" * 5000)
    flags = ["--max-file-size", "4Ki"]
    provider = FileProvider(parse(WatcherSettings, [*flags, "--endpoints-file", str(tmp_path)], {}, "watcher"))
    state = State()
    provider.files.follow([Root(str(tmp_path), "--endpoints-file")])
    await exhaust(state.apply(await provider.files.load(), 0.0))
    refused = [f"{path}: {each}" for path, found in state.problems().items() for each in found]
    assert len(refused) == 6
    assert check(*flags, str(tmp_path)) == 1
    errors = [line for line in check.err.splitlines() if ": warning: " not in line]
    assert sorted(errors) == sorted(entry.removesuffix(" (--endpoints-file)") for entry in refused)


def test_standard_input_is_a_file(monkeypatch: pytest.MonkeyPatch, check: Run) -> None:
    def given(*flags: str) -> int:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(ENDPOINTS.encode())))
        return check(*flags, "-")

    assert given() == 0
    assert check.out.startswith("standard input: ok\n  2 endpoints\n")
    assert given("--max-file-size", "20") == 1
    assert check.err == "standard input: document: is larger than 20 bytes\n"
    assert given("--max-file-values", "3") == 1
    assert check.err == "standard input: document: more than 3 values, keys included; no more are allowed\n"


class HollowPolicy(Plugin):
    """Says that it orders requests, and can't."""

    TYPE = "hollow-policy"
    ROLES = frozenset({Role.ORDERING_POLICY})


HOLLOW = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins: [{type: hollow-policy}]
flowControl: {defaultPriorityBand: {orderingPolicyRef: hollow-policy}}
"""


def test_what_a_picker_refuses_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "hollow.yaml", ENDPOINTS + "---\n" + HOLLOW)
    checker = Checker(Registry([*Registry.installed(), HollowPolicy]))
    for report in (checker.file(path), *checker.directory(str(tmp_path))):
        assert not report.ok
        assert list(map(str, report.errors)) == [
            "flowControl.defaultPriorityBand.orderingPolicyRef: 'hollow-policy' implements no OrderingPolicy"
        ]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "document: can't be read: No such file or directory"),
        (b"a: \xff", "document: byte 3 isn't UTF-8: invalid start byte (line 1)"),
        (b"", "document: is empty; `endpoints: []` says that there are none"),
        (b"a: [", "document: not valid YAML: did not find expected node content (line 2)"),
        (b"pods: []", "document: neither `endpoints` nor `kind` is in it (line 1)"),
        (
            b"kind: EndpointPickerConfg\napiVersion: llm-d.ai/v1alpha1\n",
            "kind: 'EndpointPickerConfg' isn't known; did you mean 'EndpointPickerConfig'? (line 1)",
        ),
        (
            b"endpoints:\n- {name: a, address: 10.0.0.1, port: 0}\n",
            "endpoints[0].port: 0 isn't a port; a number from 1 to 65535 is expected (line 2)",
        ),
        (
            b"endpoints:\n- {name: a, address: 10.0.0.1, port: 80, rank: 1180591620717411303424}\n",
            "endpoints[0].rank: 1180591620717411303424 is above 2147483647 (line 2)",
        ),
        (
            b'{"endpoints": [{"name": "a\\ud800", "address": "10.0.0.1", "port": 80}]}',
            "endpoints[0].name: \\ud800 is half a character; both halves of a surrogate pair are needed",
        ),
        pytest.param(
            b"endpoints:\n- {name: a, address: 10.0.0.1, port: 80, labels: {a: %s}}\n" % (b"x" * 1_100_000),
            "endpoints[0]: it makes a message of 1100154 bytes; NATS takes 1040384 at most (line 2)",
            id="a large label",
        ),
    ],
)
def test_what_is_no_document_is_an_error_not_a_traceback(
    content: bytes | None, problem: str, tmp_path: Path, check: Run
) -> None:
    path = tmp_path / "file.yaml"
    if content is not None:
        path.write_bytes(content)
    assert check(str(path)) == 1
    assert check.err == f"{path}: {problem}\n"


def test_what_is_missing_on_this_machine_alone_is_a_warning(tmp_path: Path, check: Run) -> None:
    path = write(
        tmp_path / "file.yaml",
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: metrics-data-source\n"
        "  parameters: {scheme: https, insecureSkipVerify: false, caCertPath: /nowhere/ca.pem}\n",
    )
    assert check(path) == 0
    assert "warning: plugins[0]: can't be made on this machine: caCertPath: '/nowhere/ca.pem'" in check.err


def test_json_is_for_machines(good: str, tmp_path: Path, check: Run) -> None:
    bad = write(tmp_path / "bad.yaml", "plugins: [{type: queue}]\n")
    endpoints = write(tmp_path / "endpoints.yaml", ENDPOINTS)
    assert check("--format", "json", good, bad, endpoints) == 1
    answer: dict[str, Any] = json.loads(check.out)
    assert check.err == ""
    assert answer["ok"] is False
    first, second, third = answer["files"]
    assert (first["origin"], first["ok"], first["errors"], second["ok"], third["ok"]) == (good, True, [], False, True)
    assert first["configuration"]["profiles"][0]["scorers"][0] == {
        "plugin": {"name": "queue-scorer", "type": "queue-scorer", "added": False},
        "weight": 2.0,
    }
    assert first["configuration"]["tiers"]["collector"] == ["metrics-data-source", "core-metrics-extractor"]
    assert first["warnings"][0]["path"] == "plugins[1].parameters"
    assert [each["path"] for each in second["errors"]] == ["kind", "apiVersion", "plugins[0].type"]
    assert [entry["id"] for entry in third["endpoints"]] == ["default/a", "default/b"]


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


@pytest.mark.skipif(not FIXTURES, reason="POINTSMAN_FIXTURES isn't set: it names the folder with configs/")
def test_published_configurations_are_described_or_refused(check: Run) -> None:
    checker = Checker(Registry.installed(), allow_experimental=True)
    for path in sorted(map(str, (Path(FIXTURES) / "configs").glob("*.yaml"))):
        each = checker.file(path)
        assert each.ok is (each.configuration is not None) is not bool(each.errors)
        assert check("--allow-experimental-plugins", path) == (0 if each.ok else 1)
        assert check.out.startswith(f"{path}: {'ok' if each.ok else len(each.errors)}")
        assert check.err.splitlines()[: len(each.errors)] == [f"{path}: {problem}" for problem in each.errors]
