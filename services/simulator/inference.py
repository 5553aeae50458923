"""What all inference APIs share: faults, counts, the engine, errors. Each API has its own bodies and error format."""

import asyncio
import hashlib
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from itertools import count
from typing import TypeAlias

from aiohttp import ClientConnectionError, web

from services.simulator.api_error import ApiError, bad_request, overloaded
from services.simulator.delivery import Closed, ResponseWriter, received_headers
from services.simulator.engine import ContextTooLong, Overloaded
from services.simulator.faults import Fail, Replace
from services.simulator.kv_transfer import KvTransferParams, offered
from services.simulator.requests import Call, Choice
from services.simulator.sequence import RequestOutput
from services.simulator.server import ModelServer
from services.simulator.sidecar import PrefillFailed
from services.simulator.tokens import BYTES_PER_TOKEN

JSON = "application/json"
EVENT_STREAM = "text/event-stream; charset=utf-8"

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Serve: TypeAlias = Callable[[bytes, str, ResponseWriter], Awaitable[web.StreamResponse]]
"""Responds to a body; the text is a unique id of the call. Raises `ApiError`."""
Whole: TypeAlias = Callable[[Call, int, dict[str, RequestOutput]], bytes]
"""The body of a response that isn't streamed, from the call, its Unix time, and the last output of each choice."""


class EventStream(ABC):
    """The server-sent events of a streamed response, made from the outputs of its choices."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._choices = {choice.request.id: choice for choice in call.choices}
        self._sent: dict[str, int] = {}
        """Tokens of each choice that were sent."""
        self.ends: dict[str, RequestOutput] = {}
        """The last output of each choice that has ended."""

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        return len(self.ends) == len(self._choices)

    def of(self, progress: RequestOutput) -> bytes:
        """The events of an output."""
        choice, sent = self._choices[progress.id], self._sent.get(progress.id)
        text = choice.text[(sent or 0) * BYTES_PER_TOKEN : progress.tokens * BYTES_PER_TOKEN]
        self._sent[progress.id] = progress.tokens
        if progress.finished:
            self.ends[progress.id] = progress
        return b"".join(self._events(choice, text, progress, sent is None))

    @abstractmethod
    def _events(self, choice: Choice, text: str, progress: RequestOutput, first: bool) -> Iterable[bytes]:
        """The events of a choice's output with this new text."""

    @abstractmethod
    def end(self) -> bytes:
        """The events after the last output. Only for a complete response."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._call.id}, {len(self.ends)} of {len(self._choices)} choices ended>"


class Inference:
    """Handles the calls of one API of one server. `error_body` makes the body of that API's errors."""

    def __init__(self, server: ModelServer, error_body: Callable[[ApiError], bytes]) -> None:
        self._server = server
        self._error_body = error_body
        self._numbers = count(1)

    def handler(self, serve: Serve) -> Handler:
        """An HTTP handler whose responses come from `serve`."""

        async def handle(request: web.Request) -> web.StreamResponse:
            server, counts = self._server, self._server.counts
            counts.requests += 1
            began = time.monotonic()
            status, body, reply = 499, b"", ResponseWriter(request)
            try:
                body = await read_body(request)
                if server.sidecar is not None:
                    body, prefiller = await server.sidecar.prefill(request, body)
                    if prefiller:
                        reply.header("x-simulator-prefill", prefiller)
                fault = await server.apply_fault("inference", reply)
                if request.headers.get("x-simulator-echo", "").lower() in ("1", "true"):
                    echo_headers(reply, request, body)
                if isinstance(fault, Fail):
                    raise ApiError(
                        fault.status, "InternalServerError", "A test has set this fault.", retry_after=fault.retry_after
                    )
                if isinstance(fault, Replace):
                    response = await reply.whole(fault.body.encode(), JSON)
                else:
                    response = await serve(body, f"{server.name}-{next(self._numbers)}", reply)
                status = response.status
                counts.answered += not reply.spoiled
            except ApiError as error:
                status = error.status
                counts.answered += 1
                counts.refused += 1
                if error.retry_after is not None:
                    reply.header("retry-after", str(error.retry_after))
                response = await reply.whole(self._error_body(error), JSON, status)
            except PrefillFailed as error:
                status = error.status
                counts.answered += 1
                counts.refused += 1
                counts.prefill_failures += 1
                response = await reply.whole(error.body, error.content_type, status)
            except Closed:
                response = web.Response()
            except (asyncio.CancelledError, ClientConnectionError):
                counts.aborted += 1
                raise
            finally:
                counts.spoiled += reply.spoiled
                seconds = time.monotonic() - began
                server.page.http.observe(request.path, request.method, status, len(body), reply.sent, seconds)
            return response

        return handle

    async def generate(
        self, call: Call, reply: ResponseWriter, whole: Whole, events: Callable[[Call, int], EventStream]
    ) -> web.StreamResponse:
        """Run the call in the engine and respond. Raises `ApiError` if the engine rejects it."""
        server = self._server
        server.counts.asked_for(call.model)
        created = int(time.time())
        await self._fetch(call)
        try:
            outputs = server.driver.submit(call.engine_requests)
        except ContextTooLong as error:
            raise bad_request(str(error)) from error
        except Overloaded as error:
            raise overloaded(str(error)) from error
        try:
            if not call.stream:
                ends = await outputs.ends()
                return await reply.whole(self._offered(call, whole(call, created, ends), ends), JSON)
            stream = events(call, created)
            await reply.begin(EVENT_STREAM)
            while True:
                data = b"".join([stream.of(progress) for progress in await outputs.get()])
                if complete := stream.complete:
                    data += stream.end()
                await reply.write(data)
                if complete or reply.spoiled:
                    return await reply.end()
        finally:
            server.driver.withdraw(outputs)

    async def _fetch(self, call: Call) -> None:
        """Take the time in which the KV blocks come from a prefill server."""
        if tokens := sum(request.transferred for request in call.engine_requests if request.choices):
            settings = self._server.settings
            self._server.counts.prefilled += 1
            await asyncio.sleep(tokens * settings.kv_transfer_time / settings.speed)

    def _offered(self, call: Call, response: bytes, ends: dict[str, RequestOutput]) -> bytes:
        """The response, with the KV blocks of the prompt if a decode server asked for them."""
        if call.transfer is None or not call.transfer.do_remote_decode:
            return response
        server = self._server
        server.counts.prefills += 1
        cached = ends[call.choices[0].request.id].cached_tokens
        return offered(
            response,
            KvTransferParams(do_remote_prefill=True, remote_engine_id=server.name, remote_cached_tokens=cached),
        )

    def __repr__(self) -> str:
        return f"<Inference at {self._server!r}>"


async def read_body(request: web.Request) -> bytes:
    """A request's body. Raises `ApiError` above the server's limit."""
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise ApiError(413, "BadRequestError", f"The body has more than {request.client_max_size} bytes.") from error


def echo_headers(reply: ResponseWriter, request: web.Request, body: bytes) -> None:
    """Describe the received request in the response headers."""
    reply.header("x-simulator-body-sha256", hashlib.sha256(body).hexdigest())
    reply.header("x-simulator-body-bytes", str(len(body)))
    reply.header("x-simulator-headers", received_headers(request))
