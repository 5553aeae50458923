"""Well-behaved load, in a process of its own so that the attackers' work isn't part of what it measures.

    python -m tests.attack.honest URL SEED

About twenty small chats a second, whole and streamed: one client sends one after the other, and groups of three come at
once. When its standard input ends, it prints a `Record` as one line of JSON.
"""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from pointsman.local.services import ROOT
from tests.attack.target import MODEL
from tests.waiting import TIMEOUT

PERIOD = 0.1
"""Seconds between two requests of the one client."""
GROUP, GROUP_PERIOD = 3, 0.3
TOKENS = 4


class Request(Struct, frozen=True):
    """A request that got its complete response, or not. Times are monotonic seconds, which processes share."""

    began: float
    first_byte: float
    """Seconds until the first byte of the response's body; until the failure, if it failed."""
    failure: str = ""


class Record(Struct):
    """The result of all requests."""

    requests: list[Request] = []
    late: float = 0.0
    """The longest time for which this process's own event loop stood still."""


class Honest:
    """Sends requests until `stop` is set."""

    def __init__(self, url: str, seed: int, stop: asyncio.Event) -> None:
        self._url = url
        self._random = random.Random(seed)
        self._stop = stop
        self.record = Record()

    async def run(self) -> None:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(self._measure_pauses())
            group.create_task(self._in_sequence(session))
            while not self._stop.is_set():
                for _ in range(GROUP):
                    group.create_task(self._send(session))
                await asyncio.sleep(GROUP_PERIOD)

    async def _in_sequence(self, session: aiohttp.ClientSession) -> None:
        while not self._stop.is_set():
            await self._send(session)
            await asyncio.sleep(PERIOD)

    async def _measure_pauses(self) -> None:
        while not self._stop.is_set():
            due = time.monotonic() + 0.01
            await asyncio.sleep(0.01)
            self.record.late = max(self.record.late, time.monotonic() - due)

    async def _send(self, session: aiohttp.ClientSession) -> None:
        stream = self._random.random() < 0.5
        prefix = f"Standing orders of signal box {self._random.randrange(6)}. " * 10
        question = f"Train {self._random.randrange(10**6)}?"
        messages = [{"role": "system", "content": prefix}, {"role": "user", "content": question}]
        body = {"model": MODEL, "max_tokens": TOKENS, "ignore_eos": True, "stream": stream, "messages": messages}
        began, failure = time.monotonic(), ""
        try:
            first = await self._exchange(session, body, stream)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            first, failure = time.monotonic(), f"{type(error).__name__}: {error}"
        self.record.requests.append(Request(began, first - began, failure))

    async def _exchange(self, session: aiohttp.ClientSession, body: dict[str, Any], stream: bool) -> float:
        """The time of the first byte. Raises ValueError or a client error without a complete response."""
        async with session.post(f"{self._url}/v1/chat/completions", json=body) as response:
            data = await response.content.readany()
            first = time.monotonic()
            text = (data + await response.read()).decode()
            if response.status != 200:
                raise ValueError(f"status {response.status}: {text[:200]}")
            if stream and not text.rstrip().endswith("data: [DONE]"):
                raise ValueError("the stream broke off")
            if not stream and json.loads(text)["usage"]["completion_tokens"] != TOKENS:
                raise ValueError("an incomplete response")
        return first


@asynccontextmanager
async def honest_process(url: str, seed: int) -> AsyncIterator[tuple[int, Callable[[], Awaitable[Record]]]]:
    """The process id, and a function that ends the process and returns its record."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.attack.honest", url, str(seed))
    child = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, stdout=pipe, cwd=ROOT, limit=2**26, start_new_session=True
    )

    async def finish() -> Record:
        output, _ = await child.communicate(b"")
        return msgspec.json.decode(output, type=Record)

    try:
        yield child.pid, finish
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def main(url: str, seed: int) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    honest = Honest(url, seed, stop)
    await honest.run()
    print(msgspec.json.encode(honest.record).decode())


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
