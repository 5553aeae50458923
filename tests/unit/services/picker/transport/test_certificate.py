"""Certificates: made at start, or read from the files of a Kubernetes TLS secret."""

import base64
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from services.picker.settings.picker import PickerSettings
from services.picker.transport import certificate
from services.picker.transport.certificate import (
    Certificate,
    Certificates,
    certificates_of,
    read,
    read_client_ca,
    self_signed,
)
from shared.config.problems import Invalid
from tests.certificates import edited

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LATER = datetime(2045, 1, 2, tzinfo=UTC)
"""Ten years on, years have four digits."""


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


def test_files_that_stay_as_they_are_arent_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may take long, and they are looked at every few seconds."""
    write(tmp_path, made := self_signed(["localhost"], NOW))
    known = read(str(tmp_path))
    (tmp_path / "ca.pem").write_text(made.chain)
    for library, function in ((x509, "load_pem_x509_certificates"), (serialization, "load_pem_private_key")):
        monkeypatch.setattr(library, function, None)
    assert read(str(tmp_path), known=known) is known
    assert read_client_ca(str(tmp_path / "ca.pem"), known=made.chain) == made.chain


def test_the_key_is_never_shown() -> None:
    made = self_signed(["a"], NOW)
    assert repr(made) == "<Certificate O=Pointsman>"
    no_text = Certificate(chain=edited(made.chain, NAME, b"\x03\x09\0ointsman"), key=made.key)
    assert repr(no_text) == "<Certificate of an unreadable subject>"
    Certificates(no_text).context()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"--cert-path: .*tls\.crt"):
        read(str(tmp_path))


@pytest.mark.parametrize(("name", "says"), [("tls.crt", "no PEM certificate"), ("tls.key", "no PEM private key")])
def test_a_file_that_is_no_pem_is_named(tmp_path: Path, name: str, says: str) -> None:
    write(tmp_path, self_signed(["a"], NOW))
    (tmp_path / name).write_text("rubbish")
    with pytest.raises(Invalid, match=rf"--cert-path: .*{name} is {says}"):
        read(str(tmp_path))


CURVE = bytes.fromhex("06082a8648ce3d030107")
"""P-256 as DER has it."""
UNKNOWN = CURVE[:-1] + b"\x7f"
VERSION = bytes.fromhex("a003020102")
"""3, as certificates have it."""
OTHER_VERSION = VERSION[:-1] + b"\x09"
NAME = b"\x0c\x09Pointsman"
END, NO_END = b"20541231", b"00001231"


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("tls.crt", CURVE, UNKNOWN),
        ("tls.key", CURVE, UNKNOWN),
        ("tls.crt", VERSION, OTHER_VERSION),
        ("tls.crt", END, NO_END),
    ],
)
def test_what_nobody_can_read_is_named_and_changes_nothing(
    tmp_path: Path, name: str, before: bytes, after: bytes
) -> None:
    """An unknown curve or version isn't a ValueError."""
    made = self_signed(["a"], LATER)
    write(tmp_path, made)
    file = tmp_path / name
    file.write_text(edited(file.read_text(), before, after))
    with pytest.raises(Invalid, match=rf"--cert-path: .*{name} is no PEM"):
        read(str(tmp_path))


@pytest.mark.parametrize(("before", "after"), [(VERSION, OTHER_VERSION), (END, NO_END)])
def test_every_certificate_of_a_chain_is_read(tmp_path: Path, before: bytes, after: bytes) -> None:
    made = self_signed(["a"], LATER)
    write(tmp_path, Certificate(chain=made.chain + edited(made.chain, before, after), key=made.key))
    with pytest.raises(Invalid, match=r"tls\.crt is no PEM certificate"):
        read(str(tmp_path))


@pytest.mark.parametrize(("before", "after"), [(VERSION, OTHER_VERSION), (END, NO_END)])
def test_a_client_ca_that_nobody_can_read_is_named(tmp_path: Path, before: bytes, after: bytes) -> None:
    file = tmp_path / "ca.crt"
    file.write_text(edited(self_signed(["a"], LATER).chain, before, after))
    with pytest.raises(Invalid, match="--client-ca-file"):
        read_client_ca(str(file))


def test_a_client_ca_may_have_any_text_beside_its_certificates(tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_text(f"# Müller\n{self_signed(['a'], NOW).chain}", encoding="utf-8")
    certificates = Certificates(self_signed(["b"], NOW), read_client_ca(str(file)))
    assert certificates.context().cert_store_stats()["x509"] == 1


def test_what_openssl_cant_use_is_an_error_at_the_start(tmp_path: Path) -> None:
    made = self_signed(["a"], NOW)
    write(tmp_path, Certificate(chain=edited(made.chain, NAME, NAME[:-1] + b"\xff"), key=made.key))
    with pytest.raises(Invalid, match="--cert-path: the certificate can't be used"):
        certificates_of(PickerSettings(cert_path=str(tmp_path)))


def test_nobody_is_asked_for_the_password_of_a_key_in_the_chain(tmp_path: Path) -> None:
    made = self_signed(["a"], NOW)
    encrypted = (
        serialization.load_pem_private_key(made.key.encode(), password=None)
        .private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"x")
        )
        .decode()
    )
    write(tmp_path, Certificate(chain=encrypted + made.chain, key=made.key))
    with pytest.raises(Invalid, match="--cert-path: the certificate can't be used"):
        certificates_of(PickerSettings(cert_path=str(tmp_path)))


def rsa_key(*numbers: int) -> str:
    """A PEM file with these numbers, whatever they are: an RSAPrivateKey (RFC 8017, A.1.2)."""

    def tagged(tag: int, data: bytes) -> bytes:
        length = len(data).to_bytes((len(data).bit_length() + 7) // 8, "big")
        return bytes((tag,)) + (length if len(data) < 128 else bytes((128 + len(length),)) + length) + data

    integers = (tagged(2, number.to_bytes(number.bit_length() // 8 + 1, "big")) for number in (0, *numbers))
    encoded = base64.encodebytes(tagged(0x30, b"".join(integers))).decode()
    return f"-----BEGIN RSA PRIVATE KEY-----\n{encoded}-----END RSA PRIVATE KEY-----\n"


@pytest.mark.parametrize("damaged", ["", "exponents", "primes", "length"])
def test_a_damaged_rsa_key_is_an_error(tmp_path: Path, damaged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if damaged == "length":
        monkeypatch.setattr(certificate, "_MAX_RSA", 2047)
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([])
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(NOW).not_valid_after(LATER)
    chain = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()
    numbers = key.private_numbers()
    primes, exponents = (numbers.p, numbers.q), (numbers.d, numbers.dmp1, numbers.dmq1)
    if damaged == "exponents":
        exponents = numbers.d ^ 8, numbers.dmp1 ^ 8, numbers.dmq1 ^ 8
    elif damaged == "primes":  # much longer ones would have it sign for minutes
        primes = numbers.p << 2048 | 1, numbers.q << 2048 | 1
    text = rsa_key(numbers.public_numbers.n, 65537, exponents[0], *primes, *exponents[1:], numbers.iqmp)
    write(tmp_path, made := Certificate(chain=chain, key=text))
    if damaged:
        with pytest.raises(Invalid, match=r"tls\.key is not the private key of the certificate in .*tls\.crt"):
            read(str(tmp_path))
    else:
        assert read(str(tmp_path)) == made


def test_a_key_of_another_certificate_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, self_signed(["a"], NOW))
    (tmp_path / "tls.key").write_text(self_signed(["a"], NOW).key)
    with pytest.raises(Invalid, match=r"tls\.key is not the private key of the certificate in .*tls\.crt"):
        read(str(tmp_path))
