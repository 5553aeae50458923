"""Clients of a picker's ext_proc port: bytes that are no messages, and messages in any order."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random
from typing import Any

import grpc
import grpc.aio
from envoy.service.ext_proc.v3 import external_processor_pb2

from services.picker.metadata import SUBSET, SUBSET_NAMESPACE
from services.picker.transport.ext_proc import SERVICE
from tests.attack.bodies import BODIES, CHAT
from tests.attack.fronts import Front, Scene
from tests.attack.raw import connection, read
from tests.attack.target import MODEL

pb: Any = external_processor_pb2
PHASES = tuple(f"{side}_{part}" for side in ("request", "response") for part in ("headers", "body", "trailers"))
BODY = b'{"model":"%s","messages":[{"role":"user","content":"a"}]}' % MODEL.encode()
END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs don't have it
LARGEST = 60 * 2**20
SIZES = [("grpc.max_send_message_length", LARGEST), ("grpc.max_receive_message_length", LARGEST)]
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""An empty frame."""
ADDRESSES = ("", "nowhere", "127.0.0.1:99999999", "[::1", "a" * 10**6, "\u00e9:1")


def message(phase: str, *, body: bytes = b"", end: bool = False, **headers: str) -> Any:
    """A valid message of a phase. Header names have underscores instead of dashes."""
    made = pb.ProcessingRequest()
    part = getattr(made, phase)
    part.SetInParent()
    if phase.endswith("_body"):
        part.body, part.end_of_stream = body, end
    elif phase.endswith("_headers"):
        usual = {":path": CHAT, ":method": "POST"} if phase.startswith("request") else {":status": "200"}
        for name, value in {**usual, **headers}.items():
            part.headers.headers.add(key=name.replace("_", "-"), raw_value=value.encode())
        part.end_of_stream = end
    return made


def encoded(*messages: Any) -> list[bytes]:
    return [each.SerializeToString() for each in messages]


USUAL = encoded(
    message("request_headers"),
    message("request_body", body=BODY, end=True),
    message("response_headers"),
    message("response_body", body=b"{}", end=True),
)
"""The messages of a whole request."""


class Proxies(Front):
    """Every stream ends: by itself, by the picker, or because the client leaves."""

    name = "proxies"
    patience = 8.0

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._calls: list[Any] = []
        """`Process` of each picker; messages are bytes."""

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        async with AsyncExitStack() as life:
            for picker in self.stack.pickers:
                address = f"{picker.address.host}:{picker.address.port}"
                channel = await life.enter_async_context(grpc.aio.insecure_channel(address, options=SIZES))
                self._calls.append(channel.stream_stream(f"/{SERVICE}/Process", None, None))
            yield

    async def _send(self, random: Random, messages: Iterable[bytes], *, hold: float = 0.0) -> None:
        """Send this on a new stream and read the answers; `hold` keeps it open for a while instead of ending it."""
        call = random.choice(self._calls)()
        try:
            for data in messages:
                await call.write(data)
            if hold:
                await asyncio.sleep(hold)
            else:
                await call.done_writing()
                while await call.read() is not END:
                    pass
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            pass  # the picker has ended the stream
        finally:
            call.cancel()

    async def act_garbage(self, random: Random) -> None:
        for _ in range(10):
            await self._send(random, [random.randbytes(random.choice((0, 1, 2, 50, 10_000))) for _ in range(3)])

    async def act_truncated(self, random: Random) -> None:
        for data in USUAL:
            await self._send(random, [data[: random.randrange(len(data))]])

    async def act_mutated(self, random: Random) -> None:
        for _ in range(20):
            changed = [bytearray(data) for data in USUAL]
            for data in changed:
                data[random.randrange(len(data))] = random.randrange(256)
            await self._send(random, map(bytes, changed))

    async def act_any_order(self, random: Random) -> None:
        for _ in range(20):
            phases = random.choices(PHASES, k=random.randint(1, 8))
            made = [message(phase, body=random.choice((b"", BODY)), end=random.random() < 0.5) for phase in phases]
            await self._send(random, encoded(*made))

    async def act_half_open(self, random: Random) -> None:
        """Streams that stop somewhere, stay open for a while, and are left."""
        hold = random.choice((0.5, 3.0))
        await asyncio.gather(*(self._send(random, USUAL[: number % len(USUAL)], hold=hold) for number in range(50)))

    async def act_cancelled(self, random: Random) -> None:
        for number in range(50):
            await self._send(random, USUAL[: 1 + number % len(USUAL)], hold=random.choice((1e-6, 1e-3)))

    async def act_subset_hints(self, random: Random) -> None:
        """A hint with very many endpoints, as a list and as a text."""
        count = random.choice((1000, 50_000, 300_000))
        names = [f"10.{ip >> 16 & 255}.{ip >> 8 & 255}.{ip & 255}:8000" for ip in range(count)]
        first = message("request_headers")
        hint: Any = random.choice((names, ",".join(names), "," * count, [[]] * 1000))
        first.metadata_context.filter_metadata[SUBSET_NAMESPACE].update({SUBSET: hint})
        await self._send(random, [*encoded(first), *USUAL[1:]])

    async def act_responses_without_requests(self, random: Random) -> None:
        made = [message(phase, body=b'data: {"usage":{}}\n\n' * 1000, end=True) for phase in PHASES[3:]]
        for start in range(3):
            await self._send(random, encoded(*made[start:]))

    async def act_crumbs(self, random: Random) -> None:
        """Bodies byte by byte, in both directions."""
        first = message("request_headers")
        first.protocol_config.request_body_mode = first.protocol_config.response_body_mode = 4
        asked = [message("request_body", body=bytes((byte,))) for byte in BODY + b" " * 2000]
        answered = [message("response_body", body=b"d") for _ in range(1000)]
        made = (first, *asked, message("request_body", end=True), message("response_headers"), *answered)
        await self._send(random, encoded(*made))

    async def act_large_bodies(self, random: Random) -> None:
        _, body = BODIES[random.choice(sorted(BODIES))](random)
        body += b" " * random.choice((0, 30 * 2**20))
        await self._send(random, encoded(message("request_headers"), message("request_body", body=body, end=True)))

    async def act_attributes(self, random: Random) -> None:
        """Too many and too large headers, attributes and metadata."""
        first, served = message("request_headers", x_long="a" * random.choice((10, 10**6))), message("response_headers")
        for number in range(random.choice((10, 5000))):
            first.request_headers.headers.headers.add(key=f"x-{number}", raw_value=random.randbytes(20))
        address = random.choice(ADDRESSES)
        served.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": address})
        hints = {f"{SUBSET}-{number}": address for number in range(100)}
        served.metadata_context.filter_metadata["envoy.lb"].update(hints)
        await self._send(random, [*encoded(first), USUAL[1], *encoded(served), USUAL[3]])

    async def act_no_http2(self, random: Random) -> None:
        """Bytes on the gRPC port that are no valid HTTP/2."""
        cases = (
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            random.randbytes(5000),
            PREFACE + SETTINGS * 5000,
            PREFACE + SETTINGS + random.randbytes(5000),
            PREFACE + SETTINGS + b"\x00\x40\x00\x01\x04\x00\x00\x00\x01" + b"\x00" * 0x4000,
            PREFACE[:10],
        )
        async with connection(random.choice(self.stack.pickers).address.port) as (reader, writer), asyncio.timeout(2):
            writer.write(random.choice(cases))
            await read(reader)

    async def act_no_requests(self, random: Random) -> None:
        """Connections that send nothing."""
        picker = random.choice(self.stack.pickers)
        async with AsyncExitStack() as life:
            for _ in range(100):
                await life.enter_async_context(connection(picker.address.port))
            await asyncio.sleep(3)
