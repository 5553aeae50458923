"""Certificates: made at start, or read from the files of a Kubernetes TLS secret."""

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from services.picker.transport.certificate import Certificate, Certificates, read, self_signed
from shared.config.problems import Invalid

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def write(directory: Path, certificate: Certificate) -> None:
    (directory / "tls.crt").write_text(certificate.chain)
    (directory / "tls.key").write_text(certificate.key)


def test_a_made_certificate_names_its_hosts_and_addresses_once() -> None:
    made = self_signed(["picker-0", "127.0.0.1", "::1", "picker-0"], NOW)
    parsed = x509.load_pem_x509_certificate(made.chain.encode())
    names = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["picker-0"]
    assert names.get_values_for_type(x509.IPAddress) == [ip_address("127.0.0.1"), ip_address("::1")]


def test_a_made_certificate_is_valid_for_ten_years_also_where_clocks_are_behind() -> None:
    parsed = x509.load_pem_x509_certificate(self_signed(["a"], NOW).chain.encode())
    assert parsed.not_valid_before_utc == NOW - timedelta(hours=1)
    assert parsed.not_valid_after_utc == NOW + timedelta(days=3650)


def test_of_a_chain_the_first_to_expire_counts() -> None:
    made, earlier = self_signed(["a"], NOW), self_signed(["a"], NOW - timedelta(days=1))
    chain = Certificate(chain=made.chain + earlier.chain, key=made.key)
    end = NOW + timedelta(days=3650)
    assert Certificates(made).expirations() == {"ext_proc": end.timestamp()}
    assert Certificates(chain, client_ca=made.chain).expirations() == {
        "ext_proc": (end - timedelta(days=1)).timestamp(),
        "ext_proc_client_ca": end.timestamp(),
    }


def test_a_written_certificate_is_read_again(tmp_path: Path) -> None:
    made = self_signed(["a"], NOW)
    write(tmp_path, made)
    assert read(str(tmp_path)) == made


def test_the_key_is_never_shown() -> None:
    made = self_signed(["a"], NOW)
    assert repr(made) == "<Certificate O=Pointsman>"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"--cert-path: .*tls\.crt"):
        read(str(tmp_path))


@pytest.mark.parametrize(("name", "says"), [("tls.crt", "no PEM certificate"), ("tls.key", "no PEM private key")])
def test_a_file_that_is_no_pem_is_named(tmp_path: Path, name: str, says: str) -> None:
    write(tmp_path, self_signed(["a"], NOW))
    (tmp_path / name).write_text("rubbish")
    with pytest.raises(Invalid, match=rf"--cert-path: .*{name} is {says}"):
        read(str(tmp_path))


def test_a_key_of_another_certificate_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, self_signed(["a"], NOW))
    (tmp_path / "tls.key").write_text(self_signed(["a"], NOW).key)
    with pytest.raises(Invalid, match=r"tls\.key is not the private key of the certificate in .*tls\.crt"):
        read(str(tmp_path))
