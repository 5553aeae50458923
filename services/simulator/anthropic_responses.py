"""Answers of Anthropic's Messages API: whole ones, the events of streamed ones, and usage.

As in vLLM, `[DONE]` follows the last event of a stream, which clients of this API pass over. Anthropic's `ping` comes
once, after the beginning of the text.
"""

from typing import Any

import msgspec

from services.simulator.counters import FinishReason
from services.simulator.requests import Call, Choice
from services.simulator.sequence import Progress

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def usage(choice: Choice, progress: Progress) -> dict[str, int]:
    """Tokens so far. `input_tokens` are those that weren't cached: the API's three kinds of input add up to all."""
    return {
        "input_tokens": choice.work.prompt.tokens - progress.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": progress.cached_tokens,
        "output_tokens": progress.tokens,
    }


def whole(call: Call, created: int, ends: dict[str, Progress]) -> bytes:
    """The body of an answer that isn't streamed."""
    [choice] = call.choices
    text = [{"type": "text", "text": choice.text}] if choice.text else []
    return _encode(
        {**_message(call), "content": text, **_stop(choice), "usage": usage(choice, ends[choice.work.id])},
    )


class MessageEvents:
    """The events of one streamed answer."""

    def __init__(self, call: Call, created: int) -> None:
        self._call = call
        [self._choice] = call.choices
        self._sent = -1
        """Tokens that the client has; -1 before the first event."""
        self._open = False
        """Whether the block of text has begun."""
        self._end: Progress | None = None

    @property
    def complete(self) -> bool:
        """Whether the answer has ended."""
        return self._end is not None

    def of(self, progress: Progress) -> bytes:
        """What the client gets for this progress."""
        choice = self._choice
        pieces: list[bytes] = []
        if self._sent < 0:
            pieces.append(self._start(progress))
            self._sent = 0
        if text := choice.between(self._sent, progress.tokens):
            if not self._open:
                self._open = True
                block = {"type": "text", "text": ""}
                pieces.append(_sse({"type": "content_block_start", "index": 0, "content_block": block}))
                pieces.append(_sse({"type": "ping"}))
            delta = {"type": "text_delta", "text": text}
            pieces.append(_sse({"type": "content_block_delta", "index": 0, "delta": delta}))
        self._sent = progress.tokens
        if progress.finished:
            self._end = progress
        return b"".join(pieces)

    def end(self) -> bytes:
        """The end of the text, why it ended, usage, and the mark of the end. Only when complete."""
        assert self._end is not None, "the answer has ended"
        pieces = [_sse({"type": "content_block_stop", "index": 0})] if self._open else []
        tokens = usage(self._choice, self._end)
        pieces.append(_sse({"type": "message_delta", "delta": _stop(self._choice), "usage": tokens}))
        pieces.append(_sse({"type": "message_stop"}))
        return b"".join(pieces) + DONE

    def _start(self, progress: Progress) -> bytes:
        tokens = usage(self._choice, progress) | {"output_tokens": 0}
        message = {**_message(self._call), "content": [], "stop_reason": None, "stop_sequence": None, "usage": tokens}
        return _sse({"type": "message_start", "message": message})

    def __repr__(self) -> str:
        return (
            f"<MessageEvents of {self._call.id}, {max(0, self._sent)} tokens, {'' if self.complete else 'not '}ended>"
        )


def _message(call: Call) -> dict[str, Any]:
    return {"id": call.id, "type": "message", "role": "assistant", "model": call.model}


def _stop(choice: Choice) -> dict[str, str | None]:
    if choice.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.stop}
    reason = "end_turn" if choice.work.finish is FinishReason.STOP else "max_tokens"
    return {"stop_reason": reason, "stop_sequence": None}


def _sse(event: dict[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (event["type"].encode(), _encode(event))
