"""What a watcher refuses to start with: everything that is wrong, and exit code 1."""

import subprocess
import sys
from pathlib import Path

import pytest


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


UNWRITABLE = "'{0}/run/eds' can't be written: no directory '{0}/run'"
NO_SOURCE = "required, and missing (or a configuration whose dataLayer.discovery names a file-discovery)"


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ([], f"--endpoints-file: {NO_SOURCE}"),
        (
            ["--endpoints-file={}", "--eds-file={}/run/eds"],
            f"--eds-file: {UNWRITABLE}",
        ),
    ],
)
def test_flags_that_make_no_watcher_are_named(tmp_path: Path, flags: list[str], problem: str) -> None:
    (tmp_path / "a.yaml").write_text("endpoints: []\n")
    assert start(*(flag.format(tmp_path) for flag in flags)) == (1, [problem.format(tmp_path)])
