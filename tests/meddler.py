"""What a network of several ways may do to a nats-server's messages: they come twice, in another order, and late."""

import asyncio
from contextlib import suppress
from random import Random

LATE = 5.0
"""Seconds by which some messages are late."""
ORDER = 0.3
"""Seconds within which others overtake each other."""


class Meddler:
    """Forwards what a nats-server says to a client (`tests.proxy.Proxy`). While `at_work`, of a hundred messages 20
    come twice, 20 are overtaken and 5 are `LATE`. Answers to requests come as they are: their time is limited."""

    def __init__(self, seed: int = 1) -> None:
        self._random = Random(seed)
        self.with_references = False
        self.late = 0
        """Messages that were, or will be."""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the server closes the connection, which raises ConnectionResetError."""

        def write(data: bytes) -> None:
            if not writer.is_closing():
                writer.write(data)

        loop = asyncio.get_running_loop()
        with suppress(asyncio.IncompleteReadError):
            while line := await reader.readuntil():
                words = line.split()
                if words[0] not in (b"MSG", b"HMSG"):
                    write(line)
                    continue
                data = line + await reader.readexactly(int(words[-1]) + 2)
                if not self.with_references or words[1].startswith(b"_INBOX"):
                    write(data)
                else:
                    for delay in self._delays():
                        loop.call_later(delay, write, data)
        raise ConnectionResetError("the end of one direction is the end of both")

    def _delays(self) -> tuple[float, ...]:
        draw = self._random.random()
        if draw < 0.05:
            self.late += 1
            return (LATE,)
        if draw < 0.25:
            return (0.0, self._random.uniform(0.0, ORDER))
        return (self._random.uniform(0.0, ORDER) if draw < 0.45 else 0.0,)

    def __repr__(self) -> str:
        return f"<Meddler {'at work' if self.with_references else 'idle'}, {self.late} late>"
