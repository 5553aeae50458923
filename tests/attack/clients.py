"""Clients of Envoy that send what is hard to read, or send and read it in hard ways."""

import asyncio
import json
from collections.abc import Mapping
from functools import partial
from random import Random

from services.picker.metadata import DESTINATION, HOSTS, OBJECTIVE_HEADERS, REWRITE_HEADERS, SERVED, SUBSET
from tests.attack.bodies import BODIES, CHAT
from tests.attack.fronts import Act, Front, Scene
from tests.attack.raw import connection, exchange, head, post, read, reset, status
from tests.attack.target import MODEL, UNNAMED

FORGED = (DESTINATION, SERVED, SUBSET, *HOSTS, *OBJECTIVE_HEADERS)
LONG = ("x-request-id", *OBJECTIVE_HEADERS, *REWRITE_HEADERS, SUBSET, "traceparent", "accept")
"""Headers whose value a picker keeps."""
HEAVY = 6
"""Large bodies at once."""
ENVOYS_HEADERS = 60_000
"""Bytes of headers that Envoy takes by default, less some."""
ENVOYS_BODY = 15 * 2**20
"""Bytes of a body that Envoy still holds."""
PATHS = (
    "/v1/chat/completions/../../v1/completions",
    "//v1//chat//completions",
    "/v1/chat/completions%00",
    "/v1/%63hat/completions",
    "/v1/chat/completions?" + "a=b&" * 2000,
    "/" + "a" * 8000,
    "/v1/chat/completions#x",
    "*",
    "/vllm.grpc.engine.VllmEngine/Generate",
)


def _chat(model: str = MODEL, *, tokens: int = 4, stream: bool = False) -> bytes:
    fields = {"model": model, "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    return json.dumps({**fields, "messages": [{"role": "user", "content": "Train?"}]}).encode()


CHUNKED = head(CHAT, [("transfer-encoding", "chunked")])
SMALL_CHUNKS = b"".join(b"1\r\n%c\r\n" % byte for byte in _chat()) + b"0\r\n\r\n"
FRAMING = (
    CHUNKED + SMALL_CHUNKS,
    CHUNKED + b"1;" + b"x" * 20_000 + b"\r\na\r\n",
    CHUNKED + b"ffffffffffffffff\r\na\r\n",
    CHUNKED + b"-1\r\na\r\n",
    CHUNKED + b"1\r\na\r\n0\r\n" + b"x-trailer: a\r\n" * 500 + b"\r\n",
    head(CHAT, [("content-length", "5"), ("content-length", "6")]) + _chat(),
    head(CHAT, [("transfer-encoding", "chunked"), ("content-length", "5")]) + SMALL_CHUNKS,
    head(CHAT, [("expect", "100-continue")], length=len(_chat())) + _chat(),
    head(CHAT, [("upgrade", "websocket"), ("content-encoding", "gzip")], length=len(_chat())) + _chat(),
)


class Clients(Front):
    """Any response is right, unless it means that a client chose what isn't its to choose."""

    name = "clients"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        assert self.stack.envoy is not None
        self._port = self.stack.envoy.places.port

    def tables(self) -> Mapping[str, Act]:
        return {name: partial(self._body, name) for name in BODIES}

    async def _body(self, name: str, random: Random) -> None:
        await exchange(self._port, post(*BODIES[name](random)))

    async def act_heavy(self, random: Random) -> None:
        """Large bodies at once, and a request for a model that the pool doesn't name."""
        kinds = random.choices(sorted(BODIES), k=HEAVY)
        requests = (self._body(kind, random) for kind in kinds)
        await asyncio.gather(*requests, self.act_forged_headers(random), return_exceptions=True)

    async def act_oversize(self, random: Random) -> None:
        """As much as pickers take, and more."""
        await exchange(self._port, post(CHAT, _chat() + b" " * random.choice((ENVOYS_BODY, 2 * ENVOYS_BODY))))

    async def act_forged_headers(self, random: Random) -> None:
        """Headers that only a picker sets, and a model that the pool doesn't name."""
        value = random.choice(("192.0.2.1:9", "127.0.0.1:1", UNNAMED, "a," * 1000, "\u00e9"))
        response = await exchange(self._port, post(CHAT, _chat(UNNAMED), [(name, value) for name in FORGED]))
        if self.scene.closed and status(response) == 200:
            self.scene.report("a closed pool served a model that it doesn't name")

    async def act_many_headers(self, random: Random) -> None:
        size = random.choice((1, 200, 1000))
        count = min(ENVOYS_HEADERS // (size + 10), random.choice((90, 100, 3000)))
        await exchange(self._port, post(CHAT, _chat(), [(f"x-{number}", "a" * size) for number in range(count)]))

    async def act_long_headers(self, random: Random) -> None:
        """One header as long as Envoy takes."""
        value = random.choice(("a", ",", " ", "é", "=")) * (ENVOYS_HEADERS // 2)
        await exchange(self._port, post(CHAT, _chat(), [(random.choice(LONG), f"x{value}x")]))

    async def act_paths(self, random: Random) -> None:
        method = random.choice(("POST", "GET", "PUT", "OPTIONS", "TRACE", "A" * 20))
        kind = random.choice(("application/json", "application/grpc", "multipart/form-data", "\u00e9"))
        body = random.choice((b"", _chat(), b"\x00\x00\x00\x00\xff" + random.randbytes(300)))
        headers = [("content-length", str(len(body))), ("content-type", kind)]
        await exchange(self._port, head(random.choice(PATHS), headers, method=method) + body)

    async def act_framing(self, random: Random) -> None:
        no_http = (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + random.randbytes(200), random.randbytes(500) + b"\r\n\r\n")
        await exchange(self._port, random.choice((*FRAMING, *no_http)))

    async def act_half_a_body(self, random: Random) -> None:
        path, body = BODIES[random.choice(sorted(BODIES))](random)
        async with connection(self._port) as (reader, writer):
            writer.write(head(path, length=len(body)) + body[: len(body) // 2])
            await writer.drain()
            async with asyncio.timeout(random.choice((0.5, 3.0))):
                await read(reader)

    async def act_left_in_the_request(self, random: Random) -> None:
        """Many at once that leave as soon as they have sent everything, or most of it."""
        data = post(CHAT, _chat(tokens=50, stream=True))
        for _ in range(30):
            async with connection(self._port) as (_, writer):
                writer.write(data[: len(data) - random.choice((0, 0, 1, 40))])
                await asyncio.sleep(random.choice((0.0, 0.002, 0.01)))

    async def act_left_in_the_response(self, random: Random) -> None:
        async def leave() -> None:
            async with connection(self._port) as (reader, writer):
                writer.write(post(CHAT, _chat(tokens=1000, stream=True)))
                await reader.read(random.choice((1, 300, 5000)))

        await asyncio.gather(*(leave() for _ in range(5)))

    async def act_slow_reader(self, random: Random) -> None:
        async with connection(self._port) as (reader, writer):
            writer.write(post(CHAT, _chat(tokens=1000, stream=True)))
            for _ in range(random.randint(20, 80)):
                await reader.read(50)
                await asyncio.sleep(0.05)

    async def act_slow_sender(self, random: Random) -> None:
        data = post(CHAT, _chat())
        async with connection(self._port) as (reader, writer):
            for at in range(0, len(data), 8):
                writer.write(data[at : at + 8])
                await writer.drain()
                await asyncio.sleep(random.choice((0.02, 0.1)))
            await read(reader)

    async def act_pipelined(self, random: Random) -> None:
        request = post(CHAT, _chat()).replace(b"connection: close", b"connection: keep-alive")
        async with connection(self._port) as (reader, writer):
            writer.write(request * random.randint(5, 30))
            await reader.read(random.choice((1, 10_000)))
            reset(writer)
