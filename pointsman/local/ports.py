"""Reserves ports of this machine, free ones or given ones.

A bound socket that never listens reserves a port. On Linux, servers that set SO_REUSEADDR or SO_REUSEPORT, as all of
ours do, can still listen on it. Nobody else gets the port as a free one or for an outgoing connection, even while its
server restarts.

For a given port this isn't enough: two Envoys with SO_REUSEPORT would share it, and each would get half of the other's
clients. So `take` also checks whether any process listens on it, and binds an abstract Unix socket with the port's
name, which the kernel allows once.
"""

import contextlib
import errno
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

LOOPBACK = "127.0.0.1"
NATS_PORT, ENVOY_PORT, ENVOY_ADMIN_PORT, CONSOLE_PORT = 4222, 8080, 9901, 8090
"""The usual ports. Envoy's statistics are on the one behind its admin interface."""
ADMIN_PORT, GRPC_PORT = 9090, 9002
"""Of the first process with admin HTTP, and of the first picker; those of others follow."""
_LISTEN = "0A"


class PortTaken(Exception):
    """A given port is in use. The message names its purpose and, if known, the process that has it."""

    def __init__(self, purpose: str, host: str, port: int, holder: str | None) -> None:
        self.purpose = purpose
        self.port = port
        self.holder = holder
        by = f"by {holder}" if holder else "by an unknown process"
        super().__init__(f"port {port} of {host}, wanted for {purpose}, is taken {by}")


class Ports:
    """Reserves ports of one address until it is closed. Use as a context manager.

    >>> with Ports() as ports:
    ...     ports.take("admin of picker-1") > 0
    True
    """

    def __init__(self, host: str = LOOPBACK) -> None:
        self.host = host
        self._held: dict[int, tuple[str, socket.socket]] = {}
        self._names: list[socket.socket] = []

    def take(self, purpose: str, wanted: int = 0, *, usual: int = 0) -> int:
        """Reserve the wanted port; without one, the usual port if it is free, or any free one. Raises PortTaken."""
        if usual and not wanted:
            try:
                return self.take(purpose, usual)
            except PortTaken:
                return self.take(purpose)
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
        """Raises PortTaken if a process listens on it or has reserved it, OSError without permission."""
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            # Without SO_REUSEPORT this fails if a process listens; SO_REUSEADDR ignores closed connections.
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
            raise PortTaken(purpose, self.host, port, "another local stack, which has reserved it") from error
        self._names.append(name)

    def close(self) -> None:
        """Release every port."""
        for sock in [*(sock for _, sock in self._held.values()), *self._names]:
            sock.close()
        self._held.clear()
        self._names.clear()

    @property
    def held(self) -> Mapping[int, str]:
        """The purpose of each port."""
        return {port: purpose for port, (purpose, _) in self._held.items()}

    def __enter__(self) -> "Ports":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Ports {self.host} {dict(self.held)}>"


class UsualPorts(Ports):
    """Gives the wanted and the usual ports without reserving them, for processes that somebody else starts."""

    def take(self, purpose: str, wanted: int = 0, *, usual: int = 0) -> int:
        return wanted or usual


def holder_of(port: int, proc: Path = Path("/proc")) -> str | None:
    """`name (pid 123)` of the process that listens on the port; None if /proc doesn't show it."""
    inodes = set(_listening_inodes(port, proc))
    if not inodes:
        return None
    for directory in proc.iterdir():
        if not directory.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            for link in (directory / "fd").iterdir():
                with contextlib.suppress(OSError):
                    target = os.readlink(link)
                    if target.startswith("socket:[") and target[8:-1] in inodes:
                        name = (directory / "comm").read_text(encoding="utf-8").strip()
                        return f"{name} (pid {directory.name})"
    return None


def _listening_inodes(port: int, proc: Path) -> Iterator[str]:
    """From /proc/net/tcp and tcp6: field 1 is `address:port` in hexadecimal, 3 the state, 9 the inode of the socket."""
    for table in ("net/tcp", "net/tcp6"):
        try:
            lines = (proc / table).read_text(encoding="ascii").splitlines()[1:]
        except OSError:  # no /proc, or no IPv6
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rsplit(":", 1)[1], 16) == port:
                yield fields[9]
