"""`pointsman lab`: what it prints and writes, and how it exits."""

import json
from pathlib import Path

import pytest

from pointsman.lab.app import main

SHORT = ("--duration", "2s", "--warmup", "500ms", "--rate", "20")


def test_every_profile_and_number_of_pickers_is_a_row_and_a_plot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    profile, plot = tmp_path / "mine.yaml", tmp_path / "lab.svg"
    profile.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: active-request-scorer\n",
        encoding="utf-8",
    )
    arguments = [*SHORT, "--pickers", "1,2", "--plot", str(plot), "--format", "json", "default", str(profile)]
    assert main(arguments) == 0
    rows = json.loads(capsys.readouterr().out)
    cases = ["1 picker", "2 pickers", "2, one killed", "2, not sharing"]
    assert [(row["profile"], row["case"]) for row in rows] == [
        (name, case) for name in ("default", "mine") for case in cases
    ]
    assert plot.read_text(encoding="utf-8").startswith("<svg")


def test_processes_compute_what_one_does(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for jobs in ("1", "2"):
        assert main([*SHORT, "--pickers", "2", "--jobs", jobs]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--pickers", "0"], "--pickers"),
        (["nowhere.yaml"], "nowhere.yaml"),
        (["--trace", "nowhere.jsonl"], "nowhere.jsonl"),
        (["--speed", "1e-308"], "--speed: 1e-308 is below 0.001"),
    ],
)
def test_what_cant_be_simulated_is_refused(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as exit:
        code = int(str(exit.code))
    assert code == 2
    assert problem in capsys.readouterr().err
