"""The deployed accounts are those of the code. What nats-server makes of them: tests/protocol/bus/test_accounts.py."""

from pathlib import Path

import pytest

from shared.bus.accounts import USERS, main

DEPLOY = Path(__file__).parents[4] / "deploy"


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("nats/accounts.conf", []),
        ("kubernetes/chart/files/accounts.conf", ["--prefix", "PREFIX"]),
    ],
)
def test_the_deployed_accounts_are_written_by_the_command(
    file: str, options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    main(options)
    command = " ".join(["python -m shared.bus.accounts", *options])
    assert capsys.readouterr().out == (DEPLOY / file).read_text(), f"write it with: {command} > deploy/{file}"


def test_an_installation_has_its_own_prefix_and_pools(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--prefix", "second", "--pool", "a/llama", "--pool", "b/qwen"])
    text = capsys.readouterr().out
    assert "pointsman." not in text
    for subject in ("second.a_llama.load.*", "second.b_qwen.load.*", "$KV.second_attributes.b_qwen.>"):
        assert f'"{subject}"' in text
    assert [line.split()[1] for line in text.splitlines() if "user: " in line] == list(USERS)
