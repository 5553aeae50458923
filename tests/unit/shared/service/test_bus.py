"""The bus of a process, from its settings."""

from pathlib import Path

import pytest

from shared.config.problems import Invalid
from shared.service.bus import make_bus
from shared.service.settings import CommonSettings
from tests.certificates import DAY, Authority, edited


def refused(settings: CommonSettings) -> list[str]:
    with pytest.raises(Invalid) as caught:
        make_bus(settings, "picker", "p1")
    return caught.value.lines()


def test_the_bus_is_made_as_the_settings_say() -> None:
    settings = CommonSettings(nats_url=("a:1", "tls://b:2"), nats_prefix="staging", pool_name="llama")
    bus, subjects, pool = make_bus(settings, "picker", "p1")
    assert (bus.servers, bus.name) == (("nats://a:1", "tls://b:2"), "pointsman-picker-p1")
    assert (subjects.prefix, pool) == ("staging", "default_llama")


@pytest.mark.parametrize("century", [b"20", b"00"])
def test_a_ca_that_ended_two_thousand_years_ago_has_expired(tmp_path: Path, century: bytes) -> None:
    """OpenSSL reads it, and Python doesn't."""
    file = Authority(tmp_path, "ca", valid=30 * 365 * DAY).ca
    file.write_text(edited(file.read_text(), b"\x18\x0f20", b"\x18\x0f" + century))
    bus, _, _ = make_bus(CommonSettings(nats_ca=str(file)), "picker", "p1")
    assert bool(bus.expirations()["nats_ca"]) == (century == b"20")


def test_a_file_that_cannot_be_read_is_told_by_its_flag(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    assert refused(CommonSettings(nats_ca=missing)) == [
        f"--nats-ca: {missing!r} can't be used: [Errno 2] No such file or directory"
    ]
    assert refused(CommonSettings(nats_credentials=missing)) == [
        f"--nats-credentials: {missing!r} can't be read: No such file or directory"
    ]
