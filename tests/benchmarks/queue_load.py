"""Clients of `bench_queues`: flows of streamed requests at a steady pace, each through the Envoy of one of the pickers.

A flow's n-th request comes at a random moment of the middle half of its n-th interval. Every picker has an Envoy of its
own, so a flow's weights say which pickers get its requests.
"""

import asyncio
import itertools
import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from random import Random

import aiohttp
from msgspec import Struct

BYTES_PER_TOKEN = 4
"""Of the simulator's prompts and answers."""


class Flow(Struct, frozen=True, kw_only=True):
    """Equal requests of one fairness id."""

    name: str
    objective: str = ""
    rate: float
    """Requests a second."""
    prompt: int
    """Tokens."""
    weights: tuple[float, ...]
    """By picker."""

    def arrivals(self, seconds: float, random: Random) -> Iterator[tuple[float, int]]:
        """When requests come, and to which picker."""
        offset = random.random()
        for number in itertools.count():
            at = (number + offset + random.uniform(-0.25, 0.25)) / self.rate
            if at >= seconds:
                return
            yield at, random.choices(range(len(self.weights)), self.weights)[0]


class Record(Struct):
    """What the clients saw. Times are seconds since the start of the load."""

    tokens: list[tuple[float, str, int]] = []
    """(when they came, flow, how many), event by event."""
    first_tokens: list[tuple[float, str, float]] = []
    """(when the request was sent, flow, seconds to its first token). At the end, requests without one count with the
    time until then."""
    failures: Counter[str] = Counter()

    def throughput(self, begin: float, end: float) -> float:
        """Tokens a second between these times."""
        return sum(count for at, _, count in self.tokens if begin <= at < end) / (end - begin)

    def served(self, begin: float, end: float) -> Counter[str]:
        """Tokens by flow."""
        served: Counter[str] = Counter()
        for at, flow, count in self.tokens:
            if begin <= at < end:
                served[flow] += count
        return served

    def ttft(self, flow: str, begin: float, end: float) -> list[float]:
        """Of the flow's requests that were sent between these times."""
        return [seconds for sent, name, seconds in self.first_tokens if name == flow and begin <= sent < end]


class Load:
    """Sends the requests of all flows until the time is over, and ends what is still open."""

    def __init__(self, urls: Sequence[str], flows: Sequence[Flow], tokens: int, seed: int = 1) -> None:
        self._urls, self._flows, self._tokens = urls, flows, tokens
        self._random = Random(seed)
        self._open: set[asyncio.Task[None]] = set()
        self.record = Record([], [], Counter())

    async def run(self, seconds: float) -> Record:
        """The record of so many seconds."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            self._session, self._began = session, time.monotonic()
            try:
                await asyncio.gather(*(self._send(flow, seconds) for flow in self._flows))
            finally:
                for task in self._open:
                    task.cancel()
                await asyncio.gather(*self._open, return_exceptions=True)
        return self.record

    async def _send(self, flow: Flow, seconds: float) -> None:
        body = {
            "model": "simulated",
            "prompt": "all " * flow.prompt,
            "max_tokens": self._tokens,
            "ignore_eos": True,
            "stream": True,
        }
        data = json.dumps(body).encode()
        headers = {"content-type": "application/json", "x-llm-d-inference-fairness-id": flow.name}
        if flow.objective:
            headers["x-llm-d-inference-objective"] = flow.objective
        for at, picker in flow.arrivals(seconds, self._random):
            await asyncio.sleep(max(self._began + at - time.monotonic(), 0))
            task = asyncio.create_task(self._ask(flow, self._urls[picker], data, headers))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
        await asyncio.sleep(max(self._began + seconds - time.monotonic(), 0))

    async def _ask(self, flow: Flow, url: str, data: bytes, headers: dict[str, str]) -> None:
        record, sent = self.record, time.monotonic()
        begun = False
        try:
            async with self._session.post(f"{url}/v1/completions", data=data, headers=headers) as response:
                if response.status != 200:
                    record.failures[f"{response.status} {response.headers.get('x-llm-d-request-dropped-reason')}"] += 1
                    begun = True
                    return
                async for line in response.content:
                    if not line.startswith(b"data: {"):
                        continue
                    now = time.monotonic()
                    if not begun:
                        begun = True
                        record.first_tokens.append((sent - self._began, flow.name, now - sent))
                    text = json.loads(line[6:])["choices"][0]["text"]
                    record.tokens.append((now - self._began, flow.name, len(text) // BYTES_PER_TOKEN))
        except aiohttp.ClientError as error:
            record.failures[type(error).__name__] += 1
            begun = True
        finally:
            if not begun:
                record.first_tokens.append((sent - self._began, flow.name, time.monotonic() - sent))

    def __repr__(self) -> str:
        return f"<Load {len(self._flows)} flows, {len(self._open)} open>"
