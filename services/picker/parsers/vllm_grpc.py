"""`vllmgrpc-parser`: the calls Generate and Embed of vLLM's gRPC service, `vllm.grpc.engine.VllmEngine`.

Only the prompt and what shapes the answer are read, with the field numbers of the service's public schema; the message
goes on as it came. It names no model. All other calls, of any service, pass unread.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, ClassVar

from msgspec import Meta, Struct

from services.picker.parsers.grpc_frame import COMPRESSED, INFLATED, first_message, is_grpc
from services.picker.parsers.json_body import TAKES_DATA
from services.picker.parsers.json_counts import MAX_DECODED
from services.picker.parsers.parser import Parser
from services.picker.parsers.prompts import TOKEN_BYTES, Placeholder, Prompt, packed_ids
from services.picker.parsers.protobuf import Reader, numbers, packed, varint
from services.picker.request import Content, Headers, Unparsable

_GENERATE = "/vllm.grpc.engine.VllmEngine/Generate"
_EMBED = "/vllm.grpc.engine.VllmEngine/Embed"
_DECODED = 150_000
"""Token ids that are decoded: at 60 ns each. More of them stand in a prompt as they were sent."""


class VllmGrpcParameters(Struct, frozen=True, rename="camel"):
    """How much of a message is read."""

    max_message_bytes: Annotated[int, Meta(gt=0)] = INFLATED
    """Bytes that a compressed message may have uncompressed, to be read."""
    max_compressed_bytes: Annotated[int, Meta(gt=0)] = COMPRESSED
    """Bytes that it may have compressed, to be read."""
    max_fields: Annotated[int, Meta(gt=0)] = 5_000
    """Fields of a message and of those in it. Token ids, which are packed, are one field."""
    max_token_ids: Annotated[int, Meta(gt=0)] = 2_000_000
    transfer_parameters: bool = False
    """Whether clients may say from which servers a model server takes data."""


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
        most = self.parameters
        message = first_message(body, headers.get("grpc-encoding"), most.max_message_bytes, most.max_compressed_bytes)
        if message is None:
            if embeds or most.transfer_parameters:
                return Content()
            raise Unparsable(
                "the GenerateRequest can't be read, and may name other servers: compressed, it may have"
                f" {most.max_compressed_bytes} bytes, and {most.max_message_bytes} when it is decompressed, with gzip"
                " or deflate"
            )
        try:
            return self._embed(message) if embeds else self._generate(message)
        except ValueError as error:
            raise Unparsable(f"the {'EmbedRequest' if embeds else 'GenerateRequest'} can't be read: {error}") from error

    def _generate(self, message: memoryview) -> Content:
        """Fields of GenerateRequest: 2 tokenized or 3 text, 4 sampling_params, 5 stream, 7 mm_inputs; 6
        kv_transfer_params and 8 kv_transfer_params_json, which are refused."""
        reader = Reader(self.parameters.max_fields)
        tokenized: list[memoryview] = []
        text: memoryview | None = None
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
                    text = value
                case 4, memoryview():
                    sampling.append(value)
                case 5, int():
                    stream = value != 0
                case 7, memoryview():
                    pictures.append(value)
                case ((6 | 8), memoryview()) if value and not self.parameters.transfer_parameters:
                    name = "kv_transfer_params" if number == 6 else "kv_transfer_params_json"
                    raise Unparsable(f"{name}: not taken from clients: {TAKES_DATA}")
        limit, parallel = self._sampling(reader, sampling)
        if text is None and not tokenized:
            raise ValueError("it has neither text nor tokenized; one of them is needed")
        prompt = self._ids(reader, tokenized, pictures) if text is None else _text(text)
        return Content(
            api="generate",
            stream=stream,
            prompt=prompt.text,
            prompt_tokens=prompt.tokens,
            output_limit=limit,
            parallel=parallel,
            multimodal=bool(pictures),
        )

    def _embed(self, message: memoryview) -> Content:
        """Field of EmbedRequest: 2 tokenized."""
        reader = Reader(self.parameters.max_fields)
        tokenized = [value for number, value in reader.fields(message) if number == 2 and isinstance(value, memoryview)]
        if not tokenized:
            raise ValueError("tokenized is missing; it is needed")
        prompt = self._ids(reader, tokenized)
        return Content(api="embeddings", prompt=prompt.text, prompt_tokens=prompt.tokens)

    def _ids(self, reader: Reader, tokenized: list[memoryview], pictures: Iterable[memoryview] = ()) -> Prompt:
        """Field of TokenizedInput: 2 input_ids. A message that comes in parts is one, as the wire format has it."""
        pieces = [
            varint(value) if isinstance(value, int) else value
            for part in tokenized
            for number, value in reader.fields(part)
            if number == 2
        ]
        ids = memoryview(b"".join(pieces))
        count, most = numbers(ids), self.parameters.max_token_ids
        if count > most:
            raise ValueError(f"{count} token ids; the limit is {most}")
        if count > _DECODED:
            return Prompt(b"".join((*pictures, ids))[:MAX_DECODED], count)
        return packed_ids(packed(ids).astype("<u4").tobytes(), _placeholders(reader, pictures))

    def _sampling(self, reader: Reader, parts: list[memoryview]) -> tuple[int | None, int]:
        """Fields of SamplingParams: 8 max_tokens, 15 n."""
        found: dict[int, int] = {}
        for part in parts:
            found |= reader.numbers(part)
        return found.get(8), max(found.get(15, 1), 1)


def _text(text: memoryview) -> Prompt:
    """A prompt that is a text; of a long one only the beginning is looked at."""
    if len(text) > MAX_DECODED:
        return Prompt(bytes(text[:MAX_DECODED]), len(text) // TOKEN_BYTES)
    prompt = bytes(text)
    prompt.decode()  # a server refuses texts that aren't UTF-8
    return Prompt(prompt)


def _placeholders(reader: Reader, parts: Iterable[memoryview]) -> Iterator[Placeholder]:
    """Fields of MultimodalInputs: 5 mm_placeholders, 6 mm_hashes, in the same order."""
    ranges: list[tuple[int, int]] = []
    hashes: list[bytes] = []
    for part in parts:
        for number, value in reader.fields(part):
            if number == 5 and isinstance(value, memoryview):
                place = reader.numbers(value)  # fields of PlaceholderRange: 1 offset, 2 length
                ranges.append((place.get(1, 0), place.get(2, 0)))
            elif number == 6 and isinstance(value, memoryview):
                hashes.append(bytes(value))
    for (offset, length), name in zip(ranges, hashes, strict=False):
        yield Placeholder(offset, length, name)
