"""Some seconds of `make attack`, without the bounds that only an idle machine can keep."""

from pathlib import Path

from tests.attack.run import run

SECONDS = 8


async def test_a_system_under_attack_serves_and_is_calm_again(tmp_path: Path) -> None:
    outcome = await run(1, tmp_path, seconds=SECONDS, quiet=0.0, patient=True)
    assert not outcome.journal.breaches, list(outcome.journal.breaches.values())
    assert not outcome.exceptions
    assert outcome.served
    assert set(outcome.journal.counts()) == {"clients", "proxies", "servers", "bus", "files", "admin"}
