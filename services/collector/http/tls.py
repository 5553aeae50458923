"""TLS of scrapes: the verification of https servers and the collector's client certificate, from files.

Somebody else renews certificates while the process runs, and writes several files one after the other. So the files are
checked every few seconds, and the former context applies until the new files are valid together.
"""

import ssl
import stat
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from msgspec import Struct

from shared.key_exchange import limit_key_exchange
from shared.service.settings import MAX_TEXT

log = structlog.get_logger(__name__)

CHECK_INTERVAL = 10.0
"""Seconds between two checks of the files."""

_Stamp = tuple[tuple[int, int, int] | None, ...]
"""Modification time, size and inode of each file; None for a missing one."""


def tls_context(*, verify: bool, ca: str = "") -> ssl.SSLContext:
    """Verifies servers with the CA file (PEM), with the system's certificates, which take tens of milliseconds to read,
    or not at all. A server can't make handshakes expensive. Raises OSError for a bad file."""
    if verify:
        context = ssl.create_default_context(cafile=ca or None)
    else:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    context.options |= ssl.OP_NO_RENEGOTIATION
    limit_key_exchange(context)
    return context


class TlsFiles(Struct, frozen=True):
    """PEM files, empty without one, and whether servers are verified."""

    verify: bool
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def stamp(self) -> _Stamp:
        return tuple(_stamp(path) for path in (self.ca, self.certificate, self.key) if path)

    def context(self) -> ssl.SSLContext:
        """A context with these files. Raises ValueError with the name of a bad one."""
        try:
            _check(self.ca)
            context = tls_context(verify=self.verify, ca=self.ca)
        except OSError as error:
            raise ValueError(f"caCertPath: {self.ca!r} can't be used: {error}") from error
        if self.certificate:
            try:
                _check(self.certificate, self.key)
                # Without a password openssl would ask the terminal for that of an encrypted key.
                context.load_cert_chain(self.certificate, self.key, password="")
            except OSError as error:
                files = f"{self.certificate!r} and {self.key!r}"
                raise ValueError(f"clientCertPath, clientKeyPath: {files} can't be used: {error}") from error
        return context


class TlsContext:
    """A context that is reloaded with its files. Connections of the former context aren't reused."""

    def __init__(self, source: str, files: TlsFiles, clock: Callable[[], float] = time.monotonic) -> None:
        """`source` is its name in the log. Raises ValueError for a bad file."""
        self._source = source
        self._files = files
        self._clock = clock
        self._stamp = files.stamp
        self._context = files.context()
        self._check_at = clock() + CHECK_INTERVAL
        self._problem = ""

    @property
    def context(self) -> ssl.SSLContext:
        if (now := self._clock()) >= self._check_at:
            self._check_at = now + CHECK_INTERVAL
            self._reload()
        return self._context

    def _reload(self) -> None:
        stamp = self._files.stamp
        if stamp == self._stamp:
            return
        try:
            self._context = self._files.context()
        except ValueError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("certificate.refused", source=self._source, reason=self._problem)
            return
        self._stamp, self._problem = stamp, ""
        log.info("certificate.loaded", source=self._source)

    def __repr__(self) -> str:
        return f"<TlsContext of {self._source!r} {'verifies' if self._files.verify else 'accepts any certificate'}>"


def _check(*paths: str) -> None:
    """Raises OSError for what would hold the event loop: a pipe that nobody writes to, or a very long file."""
    for path in filter(None, paths):
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            raise OSError("not a regular file")
        if status.st_size > MAX_TEXT:
            raise OSError(f"it has {status.st_size} bytes; the limit is {MAX_TEXT}")


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
