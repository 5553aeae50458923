"""What a watcher refuses to start with, everything that is wrong and exit code 1; and what it starts without."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.command_line


def start(*flags: str) -> tuple[int, list[str]]:
    """(exit code, lines that are no logs)."""
    done = subprocess.run(
        [sys.executable, "-m", "pointsman", "watcher", "--admin-host=127.0.0.1", "--admin-port=0", *flags],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, [line for line in done.stderr.splitlines() if not line.startswith("{")]


def test_every_problem_of_every_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("endpoints:\n- {name: a, address: 10.0.0.1, port: 0}\n- {name: b}\n")
    (tmp_path / "b.yaml").write_text("endpoints: [}\n")
    (tmp_path / "c.yaml").write_text("endpoints: []\n")
    code, lines = start(f"--endpoints-file={tmp_path}")
    assert code == 1
    assert lines == [
        f"{tmp_path}/a.yaml: endpoints[0].port: 0 isn't a port; a number from 1 to 65535 is expected (line 2)",
        f"{tmp_path}/a.yaml: endpoints[1].address: required, and missing (line 3)",
        f"{tmp_path}/a.yaml: endpoints[1].port: required, and missing (line 3)",
        f"{tmp_path}/b.yaml: not valid YAML: did not find expected node content (line 1)",
    ]


def test_a_watcher_without_a_source_says_what_it_needs() -> None:
    code, [line] = start()
    assert (code, line.partition(", and missing")[0]) == (1, "--endpoints-file: required")


def test_a_directory_that_is_missing_for_envoys_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("endpoints: []\n")
    code, lines = start(f"--endpoints-file={path}", f"--eds-file={tmp_path}/run/eds.json")
    assert code == 1
    assert lines == [f"--eds-file: '{tmp_path}/run/eds.json' can't be written: no directory '{tmp_path}/run'"]


def test_kubernetes_asyncio_is_not_imported_before_it_is_used() -> None:
    """It takes half a second and 40 MB: only `connect` loads it."""
    code = "import services.watcher.kubernetes.client, sys; print('kubernetes_asyncio' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
