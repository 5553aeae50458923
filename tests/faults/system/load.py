"""Mixed traffic through Envoy that remembers every failure: what was asked, when, and what came."""

import asyncio
import itertools
import json
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohttp

from tests.soak.promises import soaking
from tests.waiting import eventually

ENOUGH = 200 if soaking() else 25
"""Requests with which a test has had load."""
PAUSE = 0.0 if soaking() else 0.2
"""Seconds between two requests of a worker: more requests find no more, and keep processes from starting."""
PREFIXES = 48
"""Prefixes of prompts, of eight blocks of 64 tokens: three caches of 150 blocks hold them all if each has its own."""
_runs = itertools.count()


@dataclass(frozen=True)
class Failure:
    """A request that didn't end well."""

    request_id: str
    started: float
    ended: float
    what: str


class Hit(NamedTuple):
    """What an answer says of its prompt."""

    at: float
    """When it ended."""
    cached_tokens: int
    prompt_tokens: int


def hit_rate(hits: Sequence[Hit]) -> float:
    """Of all prompt tokens, the share that was cached."""
    return sum(hit.cached_tokens for hit in hits) / max(sum(hit.prompt_tokens for hit in hits), 1)


def back_after(hits: Sequence[Hit], since: float, usual: float) -> float:
    """Seconds from that time to the first `ENOUGH` answers with 95 % of the usual hit rate."""
    first = next((at for at, hit in enumerate(hits) if hit.at >= since), len(hits))
    for at in range(first, len(hits) - ENOUGH):
        if hit_rate(hits[at : at + ENOUGH]) >= 0.95 * usual:
            return hits[at].at - since
    return float("inf")


@dataclass
class Load:
    """Workers that each send one request after the other until the end of the context."""

    url: str
    workers: int = 12
    seed: int = 7
    failures: list[Failure] = field(default_factory=list)
    served: dict[str, int] = field(default_factory=dict)
    """By model server: how many answers it gave."""
    request_ids: list[str] = field(default_factory=list)
    """Of all requests that were sent."""
    under_way: set[str] = field(default_factory=set)
    """Those that haven't ended yet."""
    hits: list[Hit] = field(default_factory=list)
    """Of answers that weren't streamed, in the order of their ends."""

    async def goes_on(self, requests: int = ENOUGH) -> None:
        """Wait until the requests that are under way have ended, and so many more."""
        before, until = set(self.under_way), len(self.request_ids) + requests
        await eventually(
            lambda: not before & self.under_way and len(self.request_ids) - len(self.under_way) >= until,
            lambda: f"{len(before & self.under_way)} requests never end, {until - len(self.request_ids)} aren't sent",
        )

    async def __aenter__(self) -> Self:
        self._run = next(_runs)
        self._stop = asyncio.Event()
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60)
        )
        self._tasks = [asyncio.create_task(self._work(number)) for number in range(self.workers)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)
        await self._session.close()

    async def _work(self, number: int) -> None:
        choose = random.Random(self.seed * 1000 + number)
        while not self._stop.is_set():
            body = _request(choose)
            started = time.monotonic()
            name = f"load-{self._run}-{len(self.request_ids)}"
            self.request_ids.append(name)
            self.under_way.add(name)
            try:
                await self._send(name, body)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                what = f"{type(error).__name__}: {error} on {body['path']}, stream={body['json'].get('stream', False)}"
                self.failures.append(Failure(name, started, time.monotonic(), what))
            finally:
                self.under_way.discard(name)
            await asyncio.sleep(PAUSE)

    async def _send(self, name: str, request: dict[str, Any]) -> None:
        """One request. Raises ValueError, or what the client library does, unless it was answered in full."""
        headers = {"x-request-id": name}
        async with self._session.post(self.url + request["path"], json=request["json"], headers=headers) as response:
            text = await response.text()
            if response.status != 200:
                raise ValueError(f"status {response.status}: {text[:200]}")
            if request["json"].get("stream"):
                if not text.rstrip().endswith("data: [DONE]"):
                    raise ValueError(f"the stream broke off after {text[-60:]!r}")
            else:
                usage = json.loads(text)["usage"]
                if usage["completion_tokens"] != request["json"]["max_tokens"]:
                    raise ValueError(f"incomplete: {text[:200]}")
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                self.hits.append(Hit(time.monotonic(), cached, usage["prompt_tokens"]))
            server = response.headers["x-simulator-endpoint"]
            self.served[server] = self.served.get(server, 0) + 1


def _request(choose: random.Random) -> dict[str, Any]:
    """Chat or completion, streamed or not, with a long prefix, of which some are more frequent."""
    prefix = f"Standing orders of signal box {int(PREFIXES * choose.random() ** 2):02}. " * 60
    body: dict[str, Any] = {"model": "simulated", "max_tokens": choose.randint(4, 20), "ignore_eos": True}
    if choose.random() < 0.5:
        body["stream"] = True
    if choose.random() < 0.6:
        question = {"role": "user", "content": f"Train {choose.randrange(10**6)}?"}
        return {
            "path": "/v1/chat/completions",
            "json": body | {"messages": [{"role": "system", "content": prefix}, question]},
        }
    return {"path": "/v1/completions", "json": body | {"prompt": prefix + str(choose.randrange(10**6))}}
