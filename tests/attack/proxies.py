"""Proxies that speak to a picker's ext_proc port themselves: bytes that are no messages, and messages in any order."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import grpc
import grpc.aio
from envoy.service.ext_proc.v3 import external_processor_pb2

from services.picker.metadata import SUBSET, SUBSET_NAMESPACE
from services.picker.transport.grpc_server import SERVICE
from tests.attack.bodies import BODIES, CHAT
from tests.attack.fronts import Act, Front, Scene
from tests.attack.raw import connection, read
from tests.attack.target import MODEL

pb: Any = external_processor_pb2
PHASES = (
    "request_headers",
    "request_body",
    "request_trailers",
    "response_headers",
    "response_body",
    "response_trailers",
)
BODY = b'{"model":"%s","messages":[{"role":"user","content":"a"}]}' % MODEL.encode()
HINTS = (1000, 50_000, 300_000)
END: Any = grpc.aio.EOF  # type: ignore[attr-defined]  # the stubs don't have it
LARGEST = 60 * 2**20
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def message(phase: str, *, body: bytes = b"", end: bool = False, **headers: str) -> Any:
    """A sound message of a phase; headers with underscores for dashes."""
    made = pb.ProcessingRequest()
    shown = getattr(made, phase)
    shown.SetInParent()
    if phase.endswith("_body"):
        shown.body, shown.end_of_stream = body, end
    elif phase.endswith("_headers"):
        path = {":path": CHAT, ":method": "POST"} if phase.startswith("request") else {":status": "200"}
        for name, value in {**path, **{name.replace("_", "-"): one for name, one in headers.items()}}.items():
            shown.headers.headers.add(key=name, raw_value=value.encode())
        shown.end_of_stream = end
    return made


class Proxies(Front):
    """Every stream ends: by itself, by the picker, or by being left."""

    name = "proxies"
    patience = 8.0

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._calls: list[Any] = []
        """`Process` of each picker, with bytes for messages."""

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as life:
            for picker in self.stack.pickers:
                address = f"{picker.address.host}:{picker.address.port}"
                options = [("grpc.max_send_message_length", LARGEST), ("grpc.max_receive_message_length", LARGEST)]
                channel = await life.enter_async_context(grpc.aio.insecure_channel(address, options=options))
                self._calls.append(channel.stream_stream(f"/{SERVICE}/Process", None, None))
            yield

    def acts(self) -> Mapping[str, Act]:
        return {
            "garbage": self._garbage,
            "truncated": self._truncated,
            "mutated": self._mutated,
            "any-order": self._any_order,
            "half-open": self._half_open,
            "cancelled": self._cancelled,
            "subset-hints": self._hints,
            "responses-without-requests": self._responses,
            "crumbs": self._crumbs,
            "large-bodies": self._large,
            "attributes": self._attributes,
            "no-http2": self._no_http2,
            "no-requests": self._no_requests,
        }

    async def _say(self, random: Random, messages: Iterable[bytes], *, hold: float = 0.0) -> None:
        """Open a stream, say this, and hear what comes; `hold` keeps it open for a while instead of ending it."""
        call = random.choice(self._calls)()
        try:
            for one in messages:
                await call.write(one)
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

    def _usual(self) -> list[bytes]:
        """What a whole exchange consists of."""
        made = [
            message("request_headers"),
            message("request_body", body=BODY, end=True),
            message("response_headers"),
            message("response_body", body=b"{}", end=True),
        ]
        return [one.SerializeToString() for one in made]

    async def _garbage(self, random: Random) -> None:
        for _ in range(10):
            await self._say(random, [random.randbytes(random.choice((0, 1, 2, 50, 10_000))) for _ in range(3)])

    async def _truncated(self, random: Random) -> None:
        for one in self._usual():
            await self._say(random, [one[: random.randrange(len(one))]])

    async def _mutated(self, random: Random) -> None:
        for _ in range(20):
            changed = [bytearray(one) for one in self._usual()]
            for one in changed:
                one[random.randrange(len(one))] = random.randrange(256)
            await self._say(random, map(bytes, changed))

    async def _any_order(self, random: Random) -> None:
        for _ in range(20):
            phases = random.choices(PHASES, k=random.randint(1, 8))
            said = [message(one, body=random.choice((b"", BODY)), end=random.random() < 0.5) for one in phases]
            await self._say(random, [one.SerializeToString() for one in said])

    async def _half_open(self, random: Random) -> None:
        """Streams that stop somewhere, stay for a while, and are left."""
        usual = self._usual()
        hold = random.choice((0.5, 3.0))
        await asyncio.gather(*(self._say(random, usual[: one % len(usual)], hold=hold) for one in range(50)))

    async def _cancelled(self, random: Random) -> None:
        usual = self._usual()
        for number in range(50):
            await self._say(random, usual[: 1 + number % len(usual)], hold=random.choice((1e-6, 1e-3)))

    async def _hints(self, random: Random) -> None:
        """A restriction to very many endpoints, as a list and as a text."""
        count = random.choice(HINTS)
        names = [f"10.{one >> 16 & 255}.{one >> 8 & 255}.{one & 255}:8000" for one in range(count)]
        first = message("request_headers")
        hint: Any = random.choice((names, ",".join(names), "," * count, [[]] * 1000))
        first.metadata_context.filter_metadata[SUBSET_NAMESPACE].update({SUBSET: hint})
        await self._say(random, [first.SerializeToString(), *self._usual()[1:]])

    async def _responses(self, random: Random) -> None:
        phases = ("response_headers", "response_body", "response_trailers")
        for start in range(3):
            said = [message(one, body=b'data: {"usage":{}}\n\n' * 1000, end=True) for one in phases[start:]]
            await self._say(random, [one.SerializeToString() for one in said])

    async def _crumbs(self, random: Random) -> None:
        """A body, byte by byte, both ways."""
        first = message("request_headers")
        first.protocol_config.request_body_mode = first.protocol_config.response_body_mode = 4
        body = BODY + b" " * 2000
        asked = [message("request_body", body=body[at : at + 1]) for at in range(len(body))]
        told = [message("response_body", body=b"d") for _ in range(1000)]
        said = [first, *asked, message("request_body", end=True), message("response_headers"), *told]
        await self._say(random, [one.SerializeToString() for one in said])

    async def _large(self, random: Random) -> None:
        _, body = BODIES[random.choice(sorted(BODIES))](random)
        body += b" " * random.choice((0, 30 * 2**20))
        said = [message("request_headers"), message("request_body", body=body, end=True)]
        await self._say(random, [one.SerializeToString() for one in said])

    async def _attributes(self, random: Random) -> None:
        """Headers, attributes and metadata beyond measure."""
        first = message("request_headers", x_long="a" * random.choice((10, 10**6)))
        for number in range(random.choice((10, 5000))):
            first.request_headers.headers.headers.add(key=f"x-{number}", raw_value=random.randbytes(20))
        served = message("response_headers")
        address = random.choice(("", "nowhere", "127.0.0.1:99999999", "[::1", "a" * 10**6, "\u00e9:1"))
        served.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": address})
        served.metadata_context.filter_metadata["envoy.lb"].update({f"{SUBSET}-{one}": address for one in range(100)})
        usual = self._usual()
        await self._say(random, [first.SerializeToString(), usual[1], served.SerializeToString(), usual[3]])

    async def _no_http2(self, random: Random) -> None:
        """Bytes on the gRPC port that are no HTTP/2, or hardly."""
        frame = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"  # SETTINGS, empty
        cases = (
            b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
            random.randbytes(5000),
            PREFACE + frame * 5000,
            PREFACE + frame + random.randbytes(5000),
            PREFACE + frame + b"\x00\x40\x00\x01\x04\x00\x00\x00\x01" + b"\x00" * 0x4000,
            PREFACE[:10],
        )
        picker = random.choice(self.stack.pickers)
        async with connection(picker.address.port) as (reader, writer):
            writer.write(random.choice(cases))
            async with asyncio.timeout(2):
                await read(reader)

    async def _no_requests(self, random: Random) -> None:
        """Connections that say nothing."""
        picker = random.choice(self.stack.pickers)
        async with contextlib.AsyncExitStack() as life:
            for _ in range(100):
                await life.enter_async_context(connection(picker.address.port))
            await asyncio.sleep(3)
