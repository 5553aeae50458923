"""An authority for tests, and the certificates that it signs: good ones and bad ones."""

import datetime
import ssl
from base64 import b64decode, b64encode
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAY = datetime.timedelta(days=1)


def edited(pem: str, before: bytes, after: bytes) -> str:
    """A PEM file with other bytes, of as many."""
    first, *middle, last = pem.strip().split("\n")
    return "\n".join([first, b64encode(b64decode("".join(middle)).replace(before, after)).decode(), last, ""])


class Authority:
    """Signs certificates of servers and clients; its own, which ends in `valid` from now, is in the file `ca`."""

    def __init__(self, directory: Path, name: str, *, valid: datetime.timedelta = DAY) -> None:
        self._directory = directory
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._issued = 0
        self.ca = directory / f"{name}.pem"
        now = datetime.datetime.now(datetime.UTC)
        own = self._builder(self._name, self._key.public_key(), now - DAY, now + valid)
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        usage = x509.KeyUsage(False, False, False, False, False, True, True, False, False)
        own = own.add_extension(usage, critical=True)
        signed = own.sign(self._key, hashes.SHA256())
        self.ca.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        self._identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())

    def issue(self, host: str = "127.0.0.1", *others: str, expired: bool = False) -> tuple[Path, Path]:
        """(certificate, key) for IP addresses, as PEM files; an expired one was valid until an hour ago."""
        self._issued += 1
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.datetime.now(datetime.UTC)
        end = now - datetime.timedelta(hours=1) if expired else now + DAY
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
        builder = self._builder(subject, key.public_key(), now - 2 * DAY, end)
        alternatives = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address)) for address in (host, *others)])
        builder = builder.add_extension(alternatives, critical=False).add_extension(self._identifier, critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        certificate, private = self.ca.with_suffix(f".{self._issued}.crt"), self.ca.with_suffix(f".{self._issued}.key")
        certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return certificate, private

    def server(self, host: str = "127.0.0.1", *, expired: bool = False) -> ssl.SSLContext:
        """What a server with such a certificate listens with."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*self.issue(host, expired=expired))
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, begin: datetime.datetime, end: datetime.datetime
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(begin)
            .not_valid_after(end)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        )
