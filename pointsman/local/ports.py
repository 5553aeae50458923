"""Ports of this machine: free ones that stay ours, wanted ones, and who has them.

A port is held by a socket that is bound and never listens. Linux lets a server that sets SO_REUSEADDR or SO_REUSEPORT
(all of ours do) listen there all the same, while nobody else is given the port, neither as a free one nor for an
outgoing connection: also not while the server that it is meant for restarts.

For a port that is wanted by its number this isn't enough: two Envoys that set SO_REUSEPORT would share it, and each
would get half of the other's clients. So it is looked whether somebody listens, whatever options he set, and among
ourselves the first one has it, by a name that the kernel gives once.
"""

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType

LOOPBACK = "127.0.0.1"
_LISTEN = "0A"


class PortTaken(Exception):
    """A wanted port is in use. The message names what wanted it and, as far as can be told, what has it."""

    def __init__(self, purpose: str, host: str, port: int, holder: str | None) -> None:
        self.purpose = purpose
        self.port = port
        self.holder = holder
        by = f"by {holder}" if holder else "by a process that can't be seen from here"
        super().__init__(f"port {port} of {host}, wanted for {purpose}, is taken {by}")


class Ports:
    """Holds ports of one address until it is closed. Use as a context manager.

    >>> with Ports() as ports:
    ...     ports.take("admin of picker-1") > 0
    True
    """

    def __init__(self, host: str = LOOPBACK) -> None:
        self.host = host
        self._held: dict[int, tuple[str, socket.socket]] = {}
        self._names: list[socket.socket] = []

    def take(self, purpose: str, wanted: int = 0) -> int:
        """Hold the wanted port, or a free one. Raises PortTaken."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if wanted and wanted in self._held:
                raise PortTaken(purpose, self.host, wanted, f"this process, for {self._held[wanted][0]}")
            if wanted:
                self._claim(purpose, wanted, family)
            sock.bind((self.host, wanted))
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(purpose, self.host, wanted, holder_of(wanted)) from error
            raise
        except PortTaken:
            sock.close()
            raise
        port: int = sock.getsockname()[1]
        self._held[port] = (purpose, sock)
        return port

    def _claim(self, purpose: str, port: int, family: socket.AddressFamily) -> None:
        """Raises PortTaken when somebody listens there, or another one of us holds it; OSError when we may not."""
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Without SO_REUSEPORT a listener is in the way; with SO_REUSEADDR the remains of connections aren't.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((self.host, port))
        if sys.platform != "linux":
            return
        name = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            name.bind(f"\0pointsman-port-{self.host}-{port}")
        except OSError as error:
            name.close()
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortTaken(purpose, self.host, port, "another stack of ours that is about to use it") from error
        self._names.append(name)

    def close(self) -> None:
        """Let go of every port."""
        for sock in [*(sock for _, sock in self._held.values()), *self._names]:
            sock.close()
        self._held.clear()
        self._names.clear()

    @property
    def held(self) -> Mapping[int, str]:
        """What each port is held for."""
        return {port: purpose for port, (purpose, _) in self._held.items()}

    def __enter__(self) -> "Ports":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Ports {self.host} {dict(self.held)}>"


def holder_of(port: int, proc: Path = Path("/proc")) -> str | None:
    """`name (pid 123)` of the process that listens on the port; None when /proc doesn't show it to us."""
    inodes = set(_listening_inodes(port, proc))
    if not inodes:
        return None
    for directory in proc.iterdir():
        if not directory.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # gone meanwhile, or another user's
            for link in (directory / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(link)
                    if target.startswith("socket:[") and target[8:-1] in inodes:
                        name = (directory / "comm").read_text(encoding="utf-8").strip()
                        return f"{name} (pid {directory.name})"
    return None


def _listening_inodes(port: int, proc: Path) -> Iterator[str]:
    """Of /proc/net/tcp and tcp6: field 1 is `address:port` in hexadecimal, 3 the state, 9 the socket's inode."""
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:  # no /proc, or no IPv6
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                yield fields[9]
