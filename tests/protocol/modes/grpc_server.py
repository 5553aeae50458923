"""A gRPC server of the test's own with methods of vLLM's service. It takes bytes, and remembers them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from tests.unit.services.picker.parsers.vllm_schema import message

SERVICE = "vllm.grpc.engine.VllmEngine"
PIECES = 4
"""Messages of a streamed answer, the last of which is the complete one."""
TOKENS = {"prompt_tokens": 11, "completion_tokens": 6, "cached_tokens": 4}
"""What `Generate` says that it took."""
SIZE = "x-size"
"""Of a call: token ids, or numbers, in each message of its answer; by default 3."""
FAIL = "x-fail"
"""Of a call that is to fail: `first`, before any message, or `last`, after them."""
HOLD = "x-hold"
"""Of a call whose answer is to wait for `release` before its last message."""


class GrpcServer:
    """Answers with its name in `x-served-by`, and how many bytes it was sent as a trailer."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.received: list[tuple[str, bytes]] = []
        """Method and message of each call."""
        self.release = asyncio.Event()
        self.authority = ""

    async def __aenter__(self) -> "GrpcServer":
        self._server = grpc.aio.server()
        methods = {
            "Generate": grpc.unary_stream_rpc_method_handler(self._generate),
            "Embed": grpc.unary_unary_rpc_method_handler(self._embed),
            "HealthCheck": grpc.unary_unary_rpc_method_handler(self._health),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self.authority = f"127.0.0.1:{port}"
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._server.stop(0)

    async def _generate(self, data: bytes, context: Any) -> AsyncIterator[bytes]:
        asked = await self._begin("Generate", data, context)
        for number in range(PIECES):
            if number == PIECES - 1 and HOLD in asked:
                await self.release.wait()
            yield piece(number, int(asked.get(SIZE, 3)))
        if asked.get(FAIL) == "last":
            await context.abort(grpc.StatusCode.ABORTED, "the engine has stopped")

    async def _embed(self, data: bytes, context: Any) -> bytes:
        asked = await self._begin("Embed", data, context)
        return embedding(int(asked.get(SIZE, 3)))

    async def _health(self, data: bytes, context: Any) -> bytes:
        await self._begin("HealthCheck", data, context)
        return data

    async def _begin(self, method: str, data: bytes, context: Any) -> dict[str, str]:
        """What the call's metadata ask for. Fails the call when that is what they ask for."""
        self.received.append((method, data))
        asked = dict(context.invocation_metadata())
        context.set_trailing_metadata((("x-bytes", str(len(data))), ("x-served-last-by", self.name)))
        if asked.get(FAIL) == "first":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "the engine isn't there: 50 % loaded\n")
        await context.send_initial_metadata((("x-served-by", self.name),))
        return asked


def piece(number: int, size: int = 3) -> bytes:
    """A message of a streamed answer."""
    if number == PIECES - 1:
        answer = message("GenerateResponse", complete={"output_ids": [number] * size, **TOKENS})
    else:
        usage = {**TOKENS, "completion_tokens": 2 * number}
        answer = message("GenerateResponse", chunk={"token_ids": [number] * size, **usage})
    data: bytes = answer.SerializeToString()
    return data


def embedding(size: int = 3) -> bytes:
    """The answer of `Embed`."""
    fields = {"embedding": [0.5] * size, "prompt_tokens": TOKENS["prompt_tokens"], "embedding_dim": size}
    data: bytes = message("EmbedResponse", **fields).SerializeToString()
    return data
