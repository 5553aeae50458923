"""What must hold of responses, whatever a model server sends: the client gets every byte however they are cut, and
where it asked for another model by name, nothing differs but that name.

An input is a line and the response's body. The line has the content type, and then in any order what was asked for
(`generate` or `embeddings`), the `content-encoding` or, with `grpc:` before it, the `grpc-encoding`, and the places
where the body is cut.
"""

import json
import re
from itertools import pairwise
from typing import Any

import msgspec

from services.picker.body_buffer import MemoryBudget
from services.picker.request import Headers
from services.picker.responses.grpc_usage import APIS
from services.picker.responses.reader import Interest, ResponseReader
from services.picker.responses.usage import Usage

SERVED = "tuned"
ASKED = 'mine "\u00e9"'
LIMIT = 1000
"""Bytes that a reader holds at most."""
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


def check(data: bytes) -> None:
    """Raises AssertionError, or what a reader let out, for an input that shows a fault."""
    line, _, body = data.partition(b"\n")
    kind, *words = line.decode("latin-1").split(" ")
    api = next((word for word in words if word in APIS), "")
    cuts = sorted({min(int(word), len(body)) for word in words if word.isascii() and word.isdigit() and len(word) < 6})
    headers = [("content-type", kind)]
    for word in words:
        if word.startswith("grpc:"):
            headers.append(("grpc-encoding", word[5:]))
        elif word and word != api and not word.isdigit():
            headers.append(("content-encoding", word))
    pieces = [body[start:end] for start, end in pairwise([0, *cuts, len(body)])]
    asked = json.dumps(ASKED, ensure_ascii=False).encode()
    sound = _is_sound(body)
    for renames in (False, True):
        for holds in (True, False):
            whole, usage = _read([body], headers, api, renames, holds)
            cut, cut_usage = _read(pieces, headers, api, renames, holds)
            bytewise, _ = _read([bytes([byte]) for byte in body], headers, api, renames, holds)
            if len(body) <= LIMIT:
                assert cut_usage == usage, (cut_usage, usage)
                assert whole == cut == bytewise or not (renames and sound), (whole, cut, bytewise)
            for got in (whole, cut, bytewise):
                assert got == body if not renames else _is_restored(got, body, asked), got


def _read(
    pieces: list[bytes], headers: list[tuple[str, str]], api: str, renames: bool, holds: bool
) -> tuple[bytes, Usage]:
    """What a client gets, and what is known of the tokens."""
    budget = MemoryBudget(10 * LIMIT)
    names = (SERVED, ASKED) if renames else ("", "")
    reader = ResponseReader(*names, LIMIT, api=api, budget=budget)
    reader.holds = holds
    interest = reader.begin(Headers(headers))
    assert renames or interest is not Interest.CHANGE
    got: list[bytes] = []
    for number, piece in enumerate(pieces, 1):
        got.append(reader.feed(piece, number == len(pieces)))
        assert budget.used <= LIMIT + len(piece)
    usage = reader.usage
    for count in (usage.prompt, usage.completion, usage.cached):
        assert count is None or 0 <= count < 2**60
    reader.drop()
    assert budget.used == 0
    return b"".join(got), usage


def _is_sound(body: bytes) -> bool:
    """Whether it is an object, or whole lines of which those with data have objects or none; a key is there once. Of
    others, what goes on as it was depends on how they are cut."""
    if not body.lstrip().startswith(b"data"):
        return _is_object(body)
    return body.endswith(b"\n") and all(
        _is_object(line[5:]) or b"{" not in line for line in body.splitlines() if line.startswith(b"data:")
    )


def _is_object(text: bytes) -> bool:
    try:
        msgspec.json.decode(text, type=dict)
        json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError, msgspec.DecodeError):
        return False
    return True


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _is_restored(got: bytes, body: bytes, asked: bytes) -> bool:
    """Whether the bytes are the body with some of its strings that are the model's name replaced."""
    at = 0
    first, *others = got.split(asked)
    if not body.startswith(first):
        return False
    at = len(first)
    for part in others:
        string = _STRING.match(body, at)
        if string is not None and _text(string.group()) == SERVED and body.startswith(part, string.end()):
            at = string.end() + len(part)
        elif body.startswith(asked + part, at):
            at += len(asked) + len(part)
        else:
            return False
    return at == len(body)


def _text(string: bytes) -> Any:
    try:
        return json.loads(string)
    except ValueError:
        return None
