"""Answers of the OpenAI API: whole ones, the events of streamed ones, and usage."""

import base64
import struct
from collections.abc import Iterable
from typing import Any

import msgspec

from services.simulator.requests import Call, Choice
from services.simulator.sequence import Progress
from services.simulator.tokens import embedding

DONE = b"data: [DONE]\n\n"

_encode = msgspec.json.Encoder().encode


def usage(call: Call, ends: Iterable[Progress]) -> dict[str, Any]:
    """Tokens of all choices. A prompt counts once, however many choices it has."""
    by_id = {one.id: one for one in ends}
    prompts: dict[int, tuple[int, int]] = {}
    for choice in call.choices:
        # Choices of one prompt share the object; the later ones find the first one's blocks, which isn't a hit of the
        # client's.
        cached = by_id[choice.work.id].cached_tokens
        prompts.setdefault(id(choice.work.prompt), (choice.work.prompt.tokens, cached))
    prompt = sum(tokens for tokens, _ in prompts.values())
    output = sum(one.tokens for one in by_id.values())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
        "prompt_tokens_details": {"cached_tokens": sum(cached for _, cached in prompts.values())},
    }


def whole(call: Call, created: int, ends: dict[str, Progress]) -> bytes:
    """The body of an answer that isn't streamed."""
    return _encode(
        {
            "id": call.id,
            "object": "chat.completion" if call.kind == "chat" else "text_completion",
            "created": created,
            "model": call.model,
            "choices": [_choice(call, one) for one in call.choices],
            "usage": usage(call, ends.values()),
        }
    )


def embeddings(call: Call, created: int, ends: dict[str, Progress], seed: int) -> bytes:
    """The body of an embeddings answer."""
    data = []
    for choice in call.choices:
        vector = embedding(choice.work.prompt, seed, call.dimensions)
        packed = base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode() if call.base64 else vector
        data.append({"object": "embedding", "index": choice.index, "embedding": packed})
    return _encode(
        {
            "id": call.id,
            "object": "list",
            "created": created,
            "model": call.model,
            "data": data,
            "usage": usage(call, ends.values()),
        }
    )


def _choice(call: Call, choice: Choice) -> dict[str, Any]:
    base = {"index": choice.index, "logprobs": None, "finish_reason": str(choice.work.finish)}
    if call.kind == "chat":
        return {**base, "message": {"role": "assistant", "content": choice.text}}
    return {**base, "text": choice.text}


class Events:
    """The events of one streamed answer."""

    def __init__(self, call: Call, created: int) -> None:
        self._call = call
        self._choices = {choice.work.id: choice for choice in call.choices}
        self._sent = dict.fromkeys(self._choices, 0)
        self._ends: dict[str, Progress] = {}
        self._base = {
            "id": call.id,
            "object": "chat.completion.chunk" if call.kind == "chat" else "text_completion",
            "created": created,
            "model": call.model,
        }

    @property
    def complete(self) -> bool:
        """Whether every choice has ended."""
        return len(self._ends) == len(self._choices)

    def of(self, progress: Progress) -> bytes:
        """What the client gets for this progress."""
        choice = self._choices[progress.id]
        pieces: list[bytes] = []
        if not self._sent[progress.id] and self._call.kind == "chat":
            pieces.append(self._event(choice, {"role": "assistant", "content": ""}, None))
        text = choice.between(self._sent[progress.id], progress.tokens)
        self._sent[progress.id] = progress.tokens
        finish = str(choice.work.finish) if progress.finished else None
        if text or finish:
            delta = {"content": text} if text else {}
            pieces.append(self._event(choice, delta, finish))
        if progress.finished:
            self._ends[progress.id] = progress
        return b"".join(pieces)

    def end(self) -> bytes:
        """Usage, where it was asked for, and the mark of the end."""
        if not self._call.include_usage:
            return DONE
        return _sse({**self._base, "choices": [], "usage": usage(self._call, self._ends.values())}) + DONE

    def _event(self, choice: Choice, delta: dict[str, str], finish: str | None) -> bytes:
        own: dict[str, Any] = {"index": choice.index, "logprobs": None, "finish_reason": finish}
        if self._call.kind == "chat":
            own["delta"] = delta
        else:
            own["text"] = delta.get("content", "")
        return _sse({**self._base, "choices": [own]})

    def __repr__(self) -> str:
        return f"<Events of {self._call.id}, {len(self._ends)} of {len(self._choices)} choices ended>"


def _sse(event: dict[str, Any]) -> bytes:
    return b"data: " + _encode(event) + b"\n\n"
