"""The certificate of the ext_proc port: read from a directory, or made at start.

Gateways talk TLS to a picker and, by default, don't verify it (the protocol has no way to hand them a trust root), so
a self-signed certificate is what an installation without its own uses.
"""

import datetime
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from shared.config.problems import Invalid, Problem
from shared.model import is_ip
from shared.service.settings import MAX_TEXT, read_text

CERTIFICATE_FILE = "tls.crt"
KEY_FILE = "tls.key"
VALIDITY = datetime.timedelta(days=3650)
_CLOCK_SKEW = datetime.timedelta(hours=1)


class Certificate(Struct, frozen=True):
    """A certificate chain and its private key, PEM."""

    chain: str
    key: str

    def credentials(self) -> grpc.ServerCredentials:
        return grpc.ssl_server_credentials([(self.key.encode(), self.chain.encode())])

    def __repr__(self) -> str:
        names = x509.load_pem_x509_certificate(self.chain.encode()).subject.rfc4514_string()
        return f"<Certificate {names}>"


def self_signed(hosts: Iterable[str], now: datetime.datetime) -> Certificate:
    """A certificate for these host names and IP addresses (P-256, valid for ten years from `now`)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Pointsman")])
    alternatives = [
        x509.IPAddress(ip_address(host)) if is_ip(host) else x509.DNSName(host) for host in dict.fromkeys(hosts)
    ]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + VALIDITY)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        chain=certificate.public_bytes(serialization.Encoding.PEM).decode(),
        key=key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ).decode(),
    )


def read(directory: str, most: int = MAX_TEXT) -> Certificate:
    """The certificate in a directory's `tls.crt` and `tls.key` (the files of a Kubernetes TLS secret), of at most so
    many bytes each.

    Raises `Invalid`, naming the file, when one is missing or no PEM, or when they don't belong together.
    """
    chain_path, key_path = Path(directory) / CERTIFICATE_FILE, Path(directory) / KEY_FILE
    chain, key = [read_text(str(path), "--cert-path", most) for path in (chain_path, key_path)]
    try:
        certificate = x509.load_pem_x509_certificate(chain.encode())
    except ValueError as error:
        raise _invalid(f"{chain_path} is no PEM certificate: {error}") from error
    try:
        private = serialization.load_pem_private_key(key.encode(), password=None)
    except (ValueError, TypeError) as error:
        raise _invalid(f"{key_path} is no PEM private key without a password: {error}") from error
    if private.public_key() != certificate.public_key():
        raise _invalid(f"{key_path} is not the private key of the certificate in {chain_path}")
    return Certificate(chain=chain, key=key)


def _invalid(message: str) -> Invalid:
    return Invalid([Problem("--cert-path", message)])
