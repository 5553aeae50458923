"""The certificate of the ext_proc port: read from a directory, or made at start.

Gateways talk TLS to a picker and, by default, don't verify it (the protocol has no way to hand them a trust root), so
a self-signed certificate is what an installation without its own uses.
"""

import asyncio
import datetime
import socket
import ssl
import tempfile
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from services.picker.settings.picker import PickerSettings
from shared.config.problems import Invalid, Problem
from shared.key_exchange import limit_key_exchange
from shared.model import is_ip
from shared.service.settings import MAX_TEXT, read_text
from shared.service.watch import watch_files

log = structlog.get_logger(__name__)

CERTIFICATE_FILE = "tls.crt"
KEY_FILE = "tls.key"
VALIDITY = datetime.timedelta(days=3650)
LOOK_EVERY = 5.0
"""Seconds between two looks at the files where the system tells nothing of changes."""
_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: HTTP/2 allows no others (RFC 9113, section 9.2.2)."""
_CLOCK_SKEW = datetime.timedelta(hours=1)
_MAX_RSA = 16_384
"""Bits of an RSA key, the most that OpenSSL verifies."""
_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion)
"""What `cryptography` raises for files that it can't read, or that have what it doesn't know."""


class Certificate(Struct, frozen=True):
    """A certificate chain and its private key, PEM."""

    chain: str
    key: str

    def __repr__(self) -> str:
        try:
            names = x509.load_pem_x509_certificate(self.chain.encode()).subject.rfc4514_string()
        except _UNREADABLE:  # OpenSSL doesn't read it
            names = "of an unreadable subject"
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


def read(directory: str, most: int = MAX_TEXT, known: Certificate | None = None) -> Certificate:
    """The certificate in a directory's `tls.crt` and `tls.key` (the files of a Kubernetes TLS secret), of at most so
    many bytes each; the `known` one if the files have that.

    Raises `Invalid`, naming the file, when one is missing or no PEM, or when they don't belong together.
    """
    chain_path, key_path = Path(directory) / CERTIFICATE_FILE, Path(directory) / KEY_FILE
    chain, key = [read_text(str(path), "--cert-path", most) for path in (chain_path, key_path)]
    if known is not None and (chain, key) == (known.chain, known.key):
        return known
    try:
        public = x509.load_pem_x509_certificates(chain.encode())[0].public_key()
        _expiration(chain)
    except _UNREADABLE as error:
        raise _invalid(f"{chain_path} is no PEM certificate: {error}") from error
    try:
        # validating an RSA key of 8 192 bits takes 4 s, in which no other thread runs; it only has to sign for this one
        private = serialization.load_pem_private_key(key.encode(), None, unsafe_skip_rsa_key_validation=True)
    except _UNREADABLE as error:
        raise _invalid(f"{key_path} is no PEM private key without a password: {error}") from error
    if private.public_key() != public or not _signs(private, public):
        raise _invalid(f"{key_path} is not the private key of the certificate in {chain_path}")
    return Certificate(chain=chain, key=key)


def _signs(private: Any, public: Any) -> bool:
    """Whether what the private key signs is valid, if it is an RSA key, of which not everything is checked yet. With
    numbers beyond its modulus it would sign for minutes."""
    if not isinstance(private, rsa.RSAPrivateKey):
        return True
    key, modulus = private.private_numbers(), private.public_key().public_numbers().n
    if private.key_size > _MAX_RSA or max(key.p, key.q, key.d, key.dmp1, key.dmq1, key.iqmp) >= modulus:
        return False
    try:
        public.verify(private.sign(b"", padding.PKCS1v15(), hashes.SHA256()), b"", padding.PKCS1v15(), hashes.SHA256())
    except (InvalidSignature, *_UNREADABLE):
        return False
    return True


def read_client_ca(path: str, most: int = MAX_TEXT, known: str = "") -> str:
    """The certificates of a PEM file, by which clients have to be signed. The `known` ones aren't looked at again.

    Raises `Invalid`, naming the file, when it is missing or has none.
    """
    text = read_text(path, "--client-ca-file", most)
    if known and text == known:
        return text
    try:
        _expiration(text)
    except _UNREADABLE as error:
        raise Invalid([Problem("--client-ca-file", f"{path} has no PEM certificate: {error}")]) from error
    return text


class Certificates:
    """The server's certificate, and the CAs (PEM) that must have signed those of clients, which need none if empty."""

    def __init__(self, certificate: Certificate, client_ca: str = "") -> None:
        self.certificate, self.client_ca = certificate, client_ca
        self._context: ssl.SSLContext | None = None
        self._expirations = _expirations(certificate, client_ca)

    def expirations(self) -> Mapping[str, float]:
        """When they expire, in seconds since the epoch."""
        return self._expirations

    def context(self) -> ssl.SSLContext:
        """For new connections: TLS 1.2 or later, with the protocol `h2`."""
        if self._context is None:
            self._context = _context(self.certificate, self.client_ca)
        return self._context

    async def follow(self, directory: str, client_ca_file: str, most: int = MAX_TEXT) -> None:
        """Use the files of a directory, and of a CA, whenever they change, for ever. What can't be used is logged, and
        the former certificates stay."""
        paths = [Path(directory), *([Path(client_ca_file)] if client_ca_file else ())]
        refused = ""
        async for _ in watch_files(lambda: paths, LOOK_EVERY):
            try:
                certificate = await asyncio.to_thread(read, directory, most, self.certificate)
                client_ca = ""
                if client_ca_file:
                    client_ca = await asyncio.to_thread(read_client_ca, client_ca_file, most, self.client_ca)
                changed = (certificate, client_ca) != (self.certificate, self.client_ca)
                if changed:
                    context = await asyncio.to_thread(_context, certificate, client_ca)
                    expirations = await asyncio.to_thread(_expirations, certificate, client_ca)
            except (Invalid, OSError) as error:  # of OpenSSL, or there is no room for its file
                if str(error) != refused:
                    refused = str(error)
                    log.warning("certificate.refused", problem=refused)
                continue
            refused = ""
            if changed:
                self.certificate, self.client_ca, self._context = certificate, client_ca, context
                self._expirations = expirations
                log.info("certificate.loaded", certificate=repr(certificate), path=directory)

    def __repr__(self) -> str:
        return f"<Certificates {self.certificate!r}, {'mTLS' if self.client_ca else 'TLS'}>"


def certificates_of(settings: PickerSettings) -> Certificates:
    """Those of the settings; without a path, a certificate that is made for this host. Raises `Invalid`."""
    most, client_ca = settings.max_file_size, settings.client_ca_file
    if settings.cert_path:
        own = read(settings.cert_path, most)
    else:
        own = self_signed(sorted({"localhost", "127.0.0.1", socket.gethostname()}), datetime.datetime.now(datetime.UTC))
    certificates = Certificates(own, read_client_ca(client_ca, most) if client_ca else "")
    try:
        certificates.context()
    except OSError as error:
        raise _invalid(f"the certificate can't be used: {error}") from error
    return certificates


def _expirations(certificate: Certificate, client_ca: str) -> Mapping[str, float]:
    found = {"ext_proc": certificate.chain, "ext_proc_client_ca": client_ca}
    return {name: _expiration(text) for name, text in found.items() if text}


def _expiration(pem: str) -> float:
    """When the first of these certificates expires, in seconds since the epoch. Raises what is `_UNREADABLE`."""
    return min(loaded.not_valid_after_utc.timestamp() for loaded in x509.load_pem_x509_certificates(pem.encode()))


def _context(certificate: Certificate, client_ca: str) -> ssl.SSLContext:
    """Raises ssl.SSLError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # RFC 9113, section 9.2.1
    limit_key_exchange(context, _CIPHERS)
    context.set_alpn_protocols(["h2"])
    with tempfile.NamedTemporaryFile(dir=_memory()) as file:  # OpenSSL reads a chain from files alone
        file.write(f"{certificate.chain}\n{certificate.key}".encode())
        file.flush()
        context.load_cert_chain(file.name, password="")  # or OpenSSL asks the terminal for that of another key in it
    if client_ca:
        # as PEM, OpenSSL would take ASCII alone, also in the text between certificates
        trusted = x509.load_pem_x509_certificates(client_ca.encode())
        context.load_verify_locations(cadata=b"".join(map(_der, trusted)))
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _der(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.DER)


def _memory() -> str | None:
    """A folder that isn't on a disk, and writable in a container with a read-only file system; None for any."""
    shm = Path("/dev/shm")
    return str(shm) if shm.is_dir() else None


def _invalid(message: str) -> Invalid:
    return Invalid([Problem("--cert-path", message)])
