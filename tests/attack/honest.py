"""Well-behaved load, in a process of its own so that the attackers' work isn't part of what it measures.

    python -m tests.attack.honest URL SEED

About twenty small chats a second, whole and streamed: one client sends one after the other, and groups of three come at
once. At the end of its standard input it prints, as one line of JSON, what came of them: a `Record`.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from tests.attack.target import MODEL
from tests.waiting import TIMEOUT

PERIOD = 0.1
"""Seconds between two requests of the one client."""
GROUP, GROUP_PERIOD = 3, 0.3
TOKENS = 4
LIMIT = TIMEOUT
"""Seconds after which a request has failed."""


class Answered(Struct, frozen=True):
    """A request that was answered in full."""

    began: float
    """Monotonic seconds, which all processes of a machine share."""
    first_byte: float
    """Seconds until the first byte of the answer's body."""


class Failed(Struct, frozen=True):
    """One that was not."""

    began: float
    ended: float
    what: str


class Record(Struct):
    """What came of all requests."""

    answered: list[Answered] = []
    failed: list[Failed] = []
    late: float = 0.0
    """The longest time that this process's own event loop stood still."""


class Honest:
    """Sends requests until it is stopped."""

    def __init__(self, url: str, seed: int) -> None:
        self._url = url
        self._random = random.Random(seed)
        self.record = Record()

    async def run(self, stop: asyncio.Event) -> None:
        timeout = aiohttp.ClientTimeout(total=LIMIT)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            await asyncio.gather(self._in_sequence(session, stop), self._in_groups(session, stop), self._look(stop))

    async def _in_sequence(self, session: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self._one(session)
            await asyncio.sleep(PERIOD)

    async def _in_groups(self, session: aiohttp.ClientSession, stop: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as group:
            while not stop.is_set():
                for _ in range(GROUP):
                    group.create_task(self._one(session))
                await asyncio.sleep(GROUP_PERIOD)

    async def _look(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            due = time.monotonic() + 0.01
            await asyncio.sleep(0.01)
            self.record.late = max(self.record.late, time.monotonic() - due)

    async def _one(self, session: aiohttp.ClientSession) -> None:
        stream = self._random.random() < 0.5
        prefix = f"Standing orders of signal box {self._random.randrange(6)}. " * 10
        body = {
            "model": MODEL,
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "stream": stream,
            "messages": [
                {"role": "system", "content": prefix},
                {"role": "user", "content": f"Train {self._random.randrange(10**6)}?"},
            ],
        }
        began = time.monotonic()
        try:
            first = await self._send(session, body, stream)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            self.record.failed.append(Failed(began, time.monotonic(), f"{type(error).__name__}: {error}"))
        else:
            self.record.answered.append(Answered(began, first - began))

    async def _send(self, session: aiohttp.ClientSession, body: dict[str, Any], stream: bool) -> float:
        """When the first byte came. Raises ValueError, or what the client does, for anything but a whole answer."""
        async with session.post(f"{self._url}/v1/chat/completions", json=body) as response:
            data = await response.content.readany()
            first = time.monotonic()
            text = (data + await response.read()).decode()
            if response.status != 200:
                raise ValueError(f"status {response.status}: {text[:200]}")
            if stream:
                if not text.rstrip().endswith("data: [DONE]"):
                    raise ValueError("the stream broke off")
            elif json.loads(text)["usage"]["completion_tokens"] != TOKENS:
                raise ValueError("an incomplete answer")
        return first


class HonestProcess:
    """The process, from outside."""

    def __init__(self, url: str, seed: int, cwd: str) -> None:
        self._command = (sys.executable, "-m", "tests.attack.honest", url, str(seed))
        self._cwd = cwd
        self._child: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> "HonestProcess":
        pipe = asyncio.subprocess.PIPE
        self._child = await asyncio.create_subprocess_exec(
            *self._command, stdin=pipe, stdout=pipe, cwd=self._cwd, limit=2**26
        )
        return self

    @property
    def pid(self) -> int:
        assert self._child is not None
        return self._child.pid

    async def finish(self) -> Record:
        """Let it end, and hear what came of its requests."""
        assert self._child is not None
        said, _ = await self._child.communicate(b"")
        return msgspec.json.decode(said, type=Record)

    async def __aexit__(self, *_: object) -> None:
        assert self._child is not None
        if self._child.returncode is None:
            self._child.kill()
            await self._child.wait()


async def main(url: str, seed: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    honest = Honest(url, seed)
    await honest.run(stop)
    print(msgspec.json.encode(honest.record).decode())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
