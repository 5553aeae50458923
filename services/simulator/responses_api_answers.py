"""Answers of OpenAI's Responses API: whole ones, and the events of streamed ones.

As in vLLM, a stream ends with `response.completed` also when the answer was cut, which its `status` says, and no
`[DONE]` follows.
"""

from typing import Any

import msgspec

from services.simulator.counters import FinishReason
from services.simulator.requests import Call
from services.simulator.responses_api_requests import ResponsesBody
from services.simulator.sequence import Progress

_encode = msgspec.json.Encoder().encode


def whole(call: Call, created: int, ends: dict[str, Progress], asked: ResponsesBody) -> bytes:
    """The body of an answer that isn't streamed."""
    [choice] = call.choices
    return _encode(_Answer(call, created, asked).ended(ends[choice.work.id]))


class ResponseEvents:
    """The events of one streamed answer."""

    def __init__(self, call: Call, created: int, asked: ResponsesBody) -> None:
        self._answer = _Answer(call, created, asked)
        [self._choice] = call.choices
        self._sent = 0
        """Tokens that the client has."""
        self._numbers = 0
        """Events so far: each has its number."""
        self._end: Progress | None = None

    @property
    def complete(self) -> bool:
        """Whether the answer has ended."""
        return self._end is not None

    def of(self, progress: Progress) -> bytes:
        """What the client gets for this progress."""
        pieces: list[bytes] = []
        if not self._numbers:
            begun, item = self._answer.begun(), self._answer.message([], "in_progress")
            pieces.append(self._event("response.created", response=begun))
            pieces.append(self._event("response.in_progress", response=begun))
            pieces.append(self._event("response.output_item.added", output_index=0, item=item))
            pieces.append(self._of_text("response.content_part.added", part=_text("")))
        if text := self._choice.between(self._sent, progress.tokens):
            pieces.append(self._of_text("response.output_text.delta", delta=text, logprobs=[]))
        self._sent = progress.tokens
        if progress.finished:
            self._end = progress
        return b"".join(pieces)

    def end(self) -> bytes:
        """The end of the message, and the whole answer with its usage. Only when complete."""
        assert self._end is not None, "the answer has ended"
        text = self._choice.text
        item = self._answer.message([_text(text)], "completed")
        pieces = [
            self._of_text("response.output_text.done", text=text, logprobs=[]),
            self._of_text("response.content_part.done", part=_text(text)),
            self._event("response.output_item.done", output_index=0, item=item),
            self._event("response.completed", response=self._answer.ended(self._end)),
        ]
        return b"".join(pieces)

    def _of_text(self, kind: str, **fields: Any) -> bytes:
        return self._event(kind, item_id=self._answer.message_id, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> bytes:
        event = {"type": kind, "sequence_number": self._numbers, **fields}
        self._numbers += 1
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), _encode(event))

    def __repr__(self) -> str:
        return f"<ResponseEvents of {self._answer.id}, {self._sent} tokens, {'' if self.complete else 'not '}ended>"


class _Answer:
    """The response object, which events carry as well."""

    def __init__(self, call: Call, created: int, asked: ResponsesBody) -> None:
        self.id = call.id
        self.message_id = f"msg_{call.id.removeprefix('resp_')}"
        [self._choice] = call.choices
        self._common = {
            "id": call.id,
            "object": "response",
            "created_at": created,
            "model": call.model,
            "error": None,
            "instructions": asked.instructions,
            "max_output_tokens": self._choice.work.max_tokens,
            "metadata": asked.metadata,
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "tool_choice": asked.tool_choice,
            "tools": asked.tools,
        }

    def begun(self) -> dict[str, Any]:
        """Before anything of the answer is there."""
        return {**self._common, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}

    def ended(self, progress: Progress) -> dict[str, Any]:
        """With all that there is."""
        choice = self._choice
        cut = choice.work.finish is not FinishReason.STOP
        return {
            **self._common,
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": [self.message([_text(choice.text)], "completed")],
            "usage": usage(choice.work.prompt.tokens, progress),
        }

    def message(self, content: list[dict[str, Any]], status: str) -> dict[str, Any]:
        """The one item of the output."""
        return {"id": self.message_id, "type": "message", "role": "assistant", "status": status, "content": content}


def usage(prompt: int, progress: Progress) -> dict[str, Any]:
    """Tokens of prompt and answer, as this API counts them."""
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": progress.cached_tokens},
        "output_tokens": progress.tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + progress.tokens,
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
