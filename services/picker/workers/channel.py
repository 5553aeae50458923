"""Messages between a supervisor and a worker, over a pair of stream sockets.

Downwards go single bytes, some with a descriptor. Upwards go lines of JSON, each the whole status: one that
doesn't fit is left out, and the next one says it. The end of the socket means that the other process is gone.
"""

import socket
from collections.abc import Callable, Iterator

import msgspec
from msgspec import Struct

from shared.config.problems import Problem

STOP = b"s"
"""Drain, and end."""
RELEASE = b"r"
"""Make one proxy open a new connection."""
CONNECTION = b"c"
"""With an accepted connection to the ext_proc port."""
ADMIN = b"a"
"""With a connection to the worker's admin HTTP."""

_AT_ONCE = 2**16


class Status(Struct, frozen=True, omit_defaults=True):
    """A worker's status."""

    started: bool = False
    ready: bool = False
    adopted: int = 0
    """Connections that it has taken over since its start, or failed to."""
    connections: int = 0
    """Those that are open."""
    invalid: tuple[Problem, ...] = ()
    """Why it can't start."""
    origin: str = ""
    """The document with these problems, if it is one."""


class SupervisorEnd:
    """The supervisor's end of one worker's channel."""

    def __init__(self, channel: socket.socket) -> None:
        channel.setblocking(False)
        self._socket = channel
        self._received = b""
        self.open = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, command: bytes, passed: socket.socket | None = None) -> bool:
        """Send a command, with a descriptor if there is one, which stays open here. False if the worker is gone, or
        has not taken so many commands that there is no room."""
        if not self.open:
            return False
        try:
            if passed is None:
                return self._socket.send(command) == 1
            return socket.send_fds(self._socket, [command], [passed.fileno()]) == 1
        except OSError:
            return False

    def statuses(self) -> Iterator[Status]:
        """What has arrived. Afterwards `open` says whether the worker still runs."""
        try:
            data = self._socket.recv(_AT_ONCE)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        self.open = bool(data)
        *lines, self._received = (self._received + data).split(b"\n")
        for line in lines:
            yield msgspec.json.decode(line, type=Status)

    def close(self) -> None:
        self.open = False
        self._socket.close()

    def __repr__(self) -> str:
        return f"<SupervisorEnd {'open' if self.open else 'closed'}>"


class WorkerEnd:
    """The worker's end."""

    def __init__(
        self,
        channel: socket.socket,
        *,
        on_connection: Callable[[socket.socket], None],
        on_admin: Callable[[socket.socket], None],
        on_release: Callable[[], None],
        on_stop: Callable[[], None],
        on_end: Callable[[], None],
        on_lost: Callable[[bytes], None],
    ) -> None:
        """`on_lost` gets a command whose connection is lost: this process can have no more descriptors."""
        channel.setblocking(False)
        self._socket = channel
        self._with_socket = {CONNECTION: on_connection, ADMIN: on_admin}
        self._alone = {RELEASE: on_release, STOP: on_stop, b"": on_end}
        self._on_lost = on_lost
        self._unsent = b""

    def fileno(self) -> int:
        return self._socket.fileno()

    def report(self, status: Status) -> None:
        """Send a status, unless the one before hasn't left yet."""
        self._unsent = self._unsent or msgspec.json.encode(status) + b"\n"
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except OSError:
            pass  # no room, or the supervisor is gone, as the other direction will show

    def receive(self) -> None:
        """Do what the supervisor has asked for: one command."""
        try:
            command, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            command, descriptors = b"", []
        if descriptors:
            self._with_socket[command](socket.socket(fileno=descriptors[0]))
        elif command in self._with_socket:
            self._on_lost(command)
        else:
            self._alone[command]()

    def __repr__(self) -> str:
        return f"<WorkerEnd {self._socket!r}>"
