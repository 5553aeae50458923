"""Certificates that are renewed while the process runs."""

import os
import ssl
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from services.collector.http.tls import CHECK_INTERVAL, TlsContext, TlsFiles
from shared.service.settings import MAX_TEXT
from tests.certificates import Authority


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "other")


def trusted(context: ssl.SSLContext) -> list[str]:
    """The common names of the authorities."""
    names = [dict(part[0] for part in get_ca_cert["subject"]) for get_ca_cert in context.get_ca_certs()]  # type: ignore[misc]
    return [name["commonName"] for name in names]


def test_a_ca_that_was_renewed_is_trusted_after_the_next_look(authority: Authority, other: Authority) -> None:
    clock = Clock()
    tls = TlsContext("secure", TlsFiles(verify=True, ca=str(authority.ca)), clock)
    before = tls.context
    assert trusted(before) == ["ca"]
    authority.ca.write_bytes(other.ca.read_bytes())
    clock.now += CHECK_INTERVAL - 1
    assert tls.context is before
    clock.now += 1
    assert tls.context is not before, "connections of the former aren't used again"
    assert trusted(tls.context) == ["other"]


def test_files_that_say_the_same_or_are_gone_change_nothing(authority: Authority) -> None:
    clock = Clock()
    tls = TlsContext("secure", TlsFiles(verify=True, ca=str(authority.ca)), clock)
    before = tls.context
    for step in range(3):
        clock.now += CHECK_INTERVAL
        assert tls.context is before
        if step == 1:
            authority.ca.unlink()


def test_until_a_renewed_pair_fits_together_the_former_holds(authority: Authority) -> None:
    """Whoever renews a certificate writes its key before it or after it."""
    clock = Clock()
    certificate, key = authority.issue()
    renewed, its_key = authority.issue()
    tls = TlsContext("secure", TlsFiles(verify=False, certificate=str(certificate), key=str(key)), clock)
    before = tls.context
    certificate.write_bytes(renewed.read_bytes())
    with capture_logs() as logs:
        for _ in range(3):
            clock.now += CHECK_INTERVAL
            assert tls.context is before
    assert [(log["event"], log["source"]) for log in logs] == [("certificate.refused", "secure")]
    key.write_bytes(its_key.read_bytes())
    with capture_logs() as logs:
        clock.now += CHECK_INTERVAL
        assert tls.context is not before
    assert [each_log["event"] for each_log in logs] == ["certificate.loaded"]


def test_without_files_nothing_is_looked_at() -> None:
    clock = Clock()
    tls = TlsContext("secure", TlsFiles(verify=False), clock)
    before = tls.context
    clock.now += 10 * CHECK_INTERVAL
    assert tls.context is before
    assert before.verify_mode is ssl.CERT_NONE


def test_a_pipe_and_a_long_file_are_refused_unread(tmp_path: Path) -> None:
    pipe, long = tmp_path / "pipe", tmp_path / "long"
    os.mkfifo(pipe)
    with long.open("wb") as file:
        file.truncate(MAX_TEXT + 1)
    for files, says in (
        (TlsFiles(verify=True, ca=str(pipe)), "caCertPath: .* regular file"),
        (TlsFiles(verify=True, ca=str(long)), "caCertPath: .* the limit is 1048576"),
        (TlsFiles(verify=False, certificate=str(pipe), key=str(pipe)), "clientCertPath, .* regular file"),
    ):
        with pytest.raises(ValueError, match=says):
            files.context()
