"""Whom a source trusts, and by what it identifies itself: from files, which are read again when they have changed.

Certificates are renewed while the process runs, mostly by somebody else, who writes several files one after the other.
So files are looked at every few seconds, and until they can be used together, what was read before holds.
"""

import ssl
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from msgspec import Struct

from services.collector.http.tls import tls_context

log = structlog.get_logger(__name__)

LOOK_EVERY = 10.0
"""Seconds between two looks at the files."""

Stamp = tuple[tuple[int, int, int] | None, ...]
"""Of each file: when it was changed, its size, and which one it is; None where it isn't there."""


class TrustFiles(Struct, frozen=True):
    """PEM files, empty where there is none, and whether servers are verified."""

    verify: bool
    ca: str = ""
    certificate: str = ""
    key: str = ""

    @property
    def stamp(self) -> Stamp:
        return tuple(_stamp(path) for path in (self.ca, self.certificate, self.key) if path)

    def context(self) -> ssl.SSLContext:
        """How https servers are verified, and by what the collector identifies itself.

        Raises ValueError that names the file which can't be used.
        """
        try:
            context = tls_context(verify=self.verify, ca=self.ca)
        except OSError as error:
            raise ValueError(f"caCertPath: {self.ca!r} can't be used: {error}") from error
        if self.certificate:
            try:
                # Without a password openssl would ask the terminal for that of an encrypted key.
                context.load_cert_chain(self.certificate, self.key, password="")
            except OSError as error:
                files = f"{self.certificate!r} and {self.key!r}"
                raise ValueError(f"clientCertPath, clientKeyPath: {files} can't be used: {error}") from error
        return context


class Trust:
    """The present context. A new one is another object, so that connections of the former aren't used again."""

    def __init__(self, source: str, files: TrustFiles, clock: Callable[[], float] = time.monotonic) -> None:
        """`source` is its name in the log. Raises ValueError when a file can't be used."""
        self._source = source
        self._files = files
        self._clock = clock
        self._stamp = files.stamp
        self._context = files.context()
        self._look_at = clock() + LOOK_EVERY
        self._problem = ""

    @property
    def context(self) -> ssl.SSLContext:
        if (now := self._clock()) >= self._look_at:
            self._look_at = now + LOOK_EVERY
            self._look()
        return self._context

    def _look(self) -> None:
        stamp = self._files.stamp
        if stamp == self._stamp:
            return
        try:
            self._context = self._files.context()
        except ValueError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("certificates.refused", source=self._source, reason=self._problem)
            return
        self._stamp, self._problem = stamp, ""
        log.info("certificates.taken", source=self._source)

    def __repr__(self) -> str:
        return f"<Trust of {self._source!r} {'verifies' if self._files.verify else 'takes any certificate'}>"


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
