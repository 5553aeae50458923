"""Credentials files of NATS: a user's JWT and the seed of its key, which signs the server's nonce.

The Ed25519 signature is made with `cryptography`, which the project needs anyway, so that nats-py's optional `nkeys`
package isn't needed. The file is read again at each connection: a renewed file takes effect without a restart.
Formats: https://docs.nats.io/using-nats/developer/connecting/creds and github.com/nats-io/nkeys.
"""

import base64
import binascii
import re
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shared.bus.errors import BusOptionError
from shared.regular_file import read_regular

_SECTION = re.compile(rb"-----BEGIN ([A-Z ]+)-----\s*(\S+)\s+-{3,}END \1-{3,}")
_JWT = b"NATS USER JWT"
_SEED = b"USER NKEY SEED"
_MOST = 2**20
"""Bytes of a file that are read."""
_SEED_BYTES = 36
"""Two bytes of prefix, 32 of seed, two of checksum."""


class CredentialsFile:
    """Reads a credentials file. Raises BusOptionError, naming the file, when it can't be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.jwt()
        self._key()

    def _section(self, name: bytes) -> bytes:
        try:
            text = read_regular(str(self._path), _MOST)
        except OSError as error:
            raise self._unusable(f"can't be read: {error.strerror or error}") from error
        for title, content in _SECTION.findall(text):
            if title == name:
                return bytes(content)
        raise self._unusable(
            f"has no section BEGIN {name.decode()}; a file as `nsc generate creds` writes it is needed"
        )

    def _unusable(self, reason: str) -> BusOptionError:
        return BusOptionError(f"{str(self._path)!r} {reason}", "credentials")

    def jwt(self) -> bytearray:
        """The user's JWT, as nats-py's `user_jwt_cb` wants it."""
        return bytearray(self._section(_JWT))

    def _key(self) -> Ed25519PrivateKey:
        text = self._section(_SEED)
        try:
            raw = base64.b32decode(text + b"=" * (-len(text) % 8))
        except binascii.Error as error:
            raise self._unusable("has a seed that isn't base32") from error
        if len(raw) != _SEED_BYTES or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
            raise self._unusable("has a seed of the wrong length or checksum")
        return Ed25519PrivateKey.from_private_bytes(raw[2:34])

    def sign(self, nonce: str) -> bytes:
        """The signature of the server's nonce in base64, as nats-py's `signature_cb` wants it."""
        return base64.b64encode(self._key().sign(nonce.encode()))

    def __repr__(self) -> str:
        return f"<CredentialsFile {str(self._path)!r}>"
