"""`vllmgrpc-parser`: the calls Generate and Embed of vLLM's gRPC service, `vllm.grpc.engine.VllmEngine`.

Only the prompt and what shapes the answer are read, with the field numbers of the service's public schema; the message
goes on as it came. It names no model. All other calls, of any service, pass unread.
"""

from collections.abc import Iterator
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from services.picker.requests.grpc_frame import first_message, is_grpc
from services.picker.requests.parsers import Parser
from services.picker.requests.prompts import Placeholder, packed_ids
from services.picker.requests.request import Content, Headers, Unparsable
from services.picker.requests.wire import UINT32, Reader, packed

_GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
_EMBED = "/vllm.grpc.engine.VllmEngine/Embed"


class VllmGrpcParameters(Struct, frozen=True, rename="camel"):
    """How much of a message is read."""

    max_message_bytes: Annotated[int, Meta(gt=0)] = 64 * 2**20
    """Bytes that a compressed message may have uncompressed; a larger one passes unread."""
    max_fields: Annotated[int, Meta(gt=0)] = 100_000
    """Fields of a message and of those in it. Token ids, which are packed, are one field."""
    max_token_ids: Annotated[int, Meta(gt=0)] = 2_000_000


class VllmGrpcParser(Parser):
    """Reads what vLLM's gRPC service is asked, and lets all other gRPC calls pass."""

    TYPE = "vllmgrpc-parser"
    Parameters = VllmGrpcParameters
    SUFFIXES: ClassVar[tuple[str, ...]] = (_GENERATE, _EMBED)
    parameters: VllmGrpcParameters

    def takes(self, headers: Headers) -> bool:
        """Also calls of other methods and services, such as health checks: whatever is gRPC."""
        return is_grpc(headers)

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        if not path.endswith(self.SUFFIXES):
            return Content()
        embeds = path.endswith(_EMBED)
        message = first_message(body, headers.get("grpc-encoding"), self.parameters.max_message_bytes)
        if message is None:
            return Content()
        try:
            return self._embed(message) if embeds else self._generate(message)
        except ValueError as error:
            raise Unparsable(f"the {'EmbedRequest' if embeds else 'GenerateRequest'} can't be read: {error}") from error

    def _generate(self, message: memoryview) -> Content:
        """Fields of GenerateRequest: 2 tokenized or 3 text, 4 sampling_params, 5 stream, 7 mm_inputs."""
        reader = Reader(self.parameters.max_fields)
        tokenized: list[memoryview] = []
        text: bytes | None = None
        sampling: list[memoryview] = []
        pictures: list[memoryview] = []
        stream = False
        for number, value in reader.fields(message):
            match number, value:
                case 2, memoryview():  # of the two inputs the last one counts
                    tokenized.append(value)
                    text = None
                case 3, memoryview():
                    tokenized.clear()
                    text = bytes(value)
                case 4, memoryview():
                    sampling.append(value)
                case 5, int():
                    stream = value != 0
                case 7, memoryview():
                    pictures.append(value)
        limit, parallel = self._sampling(reader, sampling)
        if text is not None:
            text.decode()  # a server refuses texts that aren't UTF-8
            return Content(api="generate", stream=stream, prompt=text, output_limit=limit, parallel=parallel)
        if not tokenized:
            raise ValueError("it has neither text nor tokenized; one of them is needed")
        prompt = packed_ids(self._ids(reader, tokenized), _placeholders(reader, pictures))
        return Content(
            api="generate",
            stream=stream,
            prompt=prompt.text,
            prompt_tokens=prompt.tokens,
            output_limit=limit,
            parallel=parallel,
        )

    def _embed(self, message: memoryview) -> Content:
        """Field of EmbedRequest: 2 tokenized."""
        reader = Reader(self.parameters.max_fields)
        tokenized = [value for number, value in reader.fields(message) if number == 2 and isinstance(value, memoryview)]
        if not tokenized:
            raise ValueError("tokenized is missing; it is needed")
        prompt = packed_ids(self._ids(reader, tokenized))
        return Content(api="embeddings", prompt=prompt.text, prompt_tokens=prompt.tokens)

    def _ids(self, reader: Reader, tokenized: list[memoryview]) -> bytes:
        """Field of TokenizedInput: 2 input_ids. A message that comes in parts is one, as the wire format has it."""
        pieces: list[bytes] = []
        left = self.parameters.max_token_ids
        for part in tokenized:
            for number, value in reader.fields(part):
                if number != 2:
                    continue
                if isinstance(value, int):
                    ids = (value & UINT32).to_bytes(4, "little")
                else:
                    ids = packed(value, left).astype("<u4").tobytes()
                left -= len(ids) // 4
                pieces.append(ids)
        return b"".join(pieces)

    def _sampling(self, reader: Reader, parts: list[memoryview]) -> tuple[int | None, int]:
        """Fields of SamplingParams: 8 max_tokens, 15 n."""
        limit, parallel = None, 1
        for part in parts:
            for number, value in reader.fields(part):
                if isinstance(value, int) and number == 8:
                    limit = value & UINT32
                elif isinstance(value, int) and number == 15:
                    parallel = max(value & UINT32, 1)
        return limit, parallel


def _placeholders(reader: Reader, parts: list[memoryview]) -> Iterator[Placeholder]:
    """Fields of MultimodalInputs: 5 mm_placeholders, 6 mm_hashes, in the same order."""
    ranges: list[tuple[int, int]] = []
    hashes: list[bytes] = []
    for part in parts:
        for number, value in reader.fields(part):
            if number == 5 and isinstance(value, memoryview):
                ranges.append(_range(reader, value))
            elif number == 6 and isinstance(value, memoryview):
                hashes.append(bytes(value))
    for (offset, length), name in zip(ranges, hashes, strict=False):
        yield Placeholder(offset, length, name)


def _range(reader: Reader, message: memoryview) -> tuple[int, int]:
    """Fields of PlaceholderRange: 1 offset, 2 length."""
    found = {1: 0, 2: 0}
    for number, value in reader.fields(message):
        if isinstance(value, int):
            found[number] = value & UINT32
    return found[1], found[2]
