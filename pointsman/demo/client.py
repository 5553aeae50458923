"""Sends the demo's requests through Envoy, checks every response, and repeats those that a killed server interrupted.

It uses aiohttp, which leaves more CPU to the system under load than httpx.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import cycle
from typing import Self

import aiohttp

from pointsman.demo.responses import ResponseCheck
from pointsman.demo.tally import Tally
from pointsman.demo.workload import Request, Workload

ATTEMPTS = 3
"""How often a request is sent at most if killed servers interrupt its responses."""
TIMEOUT = 30.0
"""Seconds for one attempt."""
SERVED_BY = "x-simulator-endpoint"


async def no_server(request_id: str) -> str:
    """No server has begun to respond to that request."""
    return ""


class Client:
    """Sends a workload to a URL, or to several in turn. Use as an async context manager; leaving it cancels open
    requests.

    `responding_server` returns the server that had begun to respond to a request although the client has seen no
    response; empty if there was none.
    """

    def __init__(
        self,
        url: str | Sequence[str],
        workload: Workload,
        tally: Tally,
        *,
        responding_server: Callable[[str], Awaitable[str]] = no_server,
        max_open: int = 200,
        timeout: float = TIMEOUT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workload = workload
        self._tally = tally
        self._responding_server = responding_server
        self._clock = clock
        self._slots = asyncio.Semaphore(max_open)
        self._open: set[asyncio.Task[None]] = set()
        self._urls = cycle([url] if isinstance(url, str) else url)
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=timeout), connector=aiohttp.TCPConnector(limit=0)
        )

    async def run(self) -> None:
        """Send requests as they are due, until cancelled; open requests then continue."""
        due = self._clock()
        while True:
            request = self._workload.next()
            # Without the limit, all requests that a pause of the machine delayed would be sent at once.
            due = max(due + request.wait, self._clock() - 1.0)
            await asyncio.sleep(due - self._clock())
            if self._slots.locked():
                self._tally.throttled += 1
            await self._slots.acquire()
            task = asyncio.create_task(self._serve(request))
            self._open.add(task)
            task.add_done_callback(self._closed)

    async def finish(self) -> None:
        """Wait until every open request has an outcome; attempts and their time-out limit that."""
        while self._open:
            await asyncio.wait(self._open)

    async def _serve(self, request: Request) -> None:
        """Send one request until it has an outcome."""
        self._tally.sent += 1
        began = self._clock()
        for attempt in range(ATTEMPTS):
            if await self._attempt(request, f"demo-{request.number}-{attempt}", began):
                return
        self._tally.add_failure(f"interrupted by killed servers {ATTEMPTS} times")

    async def _attempt(self, request: Request, name: str, began: float) -> bool:
        """Send it once, with this request id. False if a killed server interrupted the response."""
        started, server, first = self._clock(), "", None
        url = next(self._urls) + request.path
        answer, headers = ResponseCheck(request), {"content-type": "application/json", "x-request-id": name}
        try:
            async with self._session.post(url, data=request.body, headers=headers) as response:
                server = response.headers.get(SERVED_BY, "")
                if response.status == 502 and self._tally.count_unprefilled(started):
                    return False
                if response.status != 200:
                    if not server and await self._is_interrupted(server, name, started):
                        return False
                    text = (await response.read())[:200].decode(errors="replace")
                    self._tally.add_failure(f"status {response.status} from {server or 'Envoy'}: {text}")
                    return True
                async for data in response.content.iter_any():
                    answer.feed(data)
                    if first is None and answer.begun and request.stream:
                        first = self._clock() - began
        except (aiohttp.ClientError, TimeoutError) as error:
            if await self._is_interrupted(server, name, started):
                return False
            what = f"{type(error).__name__}: {error}".rstrip(": ")
            self._tally.add_failure(f"the response of {server} broke off: {what}" if server else f"no response: {what}")
            return True
        if problem := answer.verdict():
            self._tally.add_failure(f"a wrong response of {server}: {problem}")
        else:
            now = self._clock()
            self._tally.add_success(server, answer.usage, first, now - began, now)
        return True

    async def _is_interrupted(self, server: str, name: str, started: float) -> bool:
        """Whether a killed server had begun to respond; `server` is set if its response headers have arrived."""
        if server or not self._tally.killed_since(started):
            return self._tally.count_interrupted(server, started)
        return self._tally.count_interrupted(await self._responding_server(name), started, unseen=True)

    def _closed(self, task: asyncio.Task[None]) -> None:
        self._open.discard(task)
        self._slots.release()
        if not task.cancelled() and (error := task.exception()) is not None:
            self._tally.add_failure(f"the client itself: {error!r}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await self._session.close()

    def __repr__(self) -> str:
        return f"<Client {self._workload!r}, {len(self._open)} open>"
