"""Bodies that are hard to read: as many values as fit, as deep as fits, numbers and texts that are none."""

from collections.abc import Callable
from random import Random
from typing import TypeAlias

from tests.attack.target import MODEL
from tests.fuzz.targets import seeds

Body: TypeAlias = tuple[str, bytes]
"""A path and what is sent there."""

SIZES = (2**16, 2**20, 8 * 2**20)
CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
_OF = b'{"model":"%s",' % MODEL.encode()
_USER = b'"messages":[{"role":"user","content":'

REPEATED: dict[str, tuple[str, bytes, bytes, bytes]] = {
    "texts": (RESPONSES, b'"input":[', b'"a"', b"]}"),
    "ints": (COMPLETIONS, b'"prompt":[', b"1", b"]}"),
    "floats": ("/v1/embeddings", b'"input":[', b"1e0", b"]}"),
    "lists-of-ints": (COMPLETIONS, b'"prompt":[', b"[1]", b"]}"),
    "prompts": (COMPLETIONS, b'"prompt":[', b'"a"', b"]}"),
    "objects": (CHAT, b'"messages":[', b"{}", b"]}"),
    "messages": (CHAT, b'"messages":[', b'{"role":"user","content":"a"}', b"]}"),
    "parts": (CHAT, _USER + b"[", b'{"type":"text","text":"a"}', b"]}]}"),
    "strings-as-parts": (CHAT, _USER + b"[", b'"a"', b"]}]}"),
    "images": (CHAT, _USER + b"[", b'{"type":"image_url","image_url":{"url":"data:,"}}', b"]}]}"),
    "nulls": (CHAT, b'"messages":[', b"null", b"]}"),
    "tools": (CHAT, b'"tools":[', b"{}", b'],"messages":[]}'),
    "systems": ("/v1/messages", b'"messages":[],"system":[', b'{"type":"text","text":"a"}', b"]}"),
    "turns": ("/v1/messages", b'"messages":[', b'{"role":"user","content":[]}', b"]}"),
    "items": ("/v1/conversations", b'"items":[', b'{"type":"message"}', b"]}"),
    "documents": ("/v1/rerank", b'"query":"a","documents":[', b'"a"', b"]}"),
    "token-ids": ("/inference/v1/generate", b'"token_ids":[', b"1", b"]}"),
    "duplicates": (CHAT, b"", b'"model":"a"', b"}"),
    "fields": (CHAT, b'"metadata":{', b'"a":{}', b'},"messages":[]}'),
}
"""A path, what goes before the value that is repeated, the value, and the end."""
NUMBERS = (b"1e999", b"-1e999", b"9" * 5000, b"1" + b"0" * 300 + b".5", b"1e-999", b"-0", b"NaN", b"Infinity", b"0x10")
LITERALS = (
    rb'"\ud800"',
    rb'"\udfff\ud800"',
    b'"\xff\xfe"',
    b'"\xed\xa0\x80"',
    b'"\x00"',
    rb'"\u0000"',
    b'"\\x"',
    b"tru",
)


def _repeated(kind: str) -> Callable[[Random], Body]:
    path, start, value, end = REPEATED[kind]

    def make(random: Random) -> Body:
        size = random.choice(SIZES)
        return path, _OF + start + (value + b",") * (size // (len(value) + 1)) + value + end

    return make


def _nested(random: Random) -> Body:
    depth = random.choice((100, 1000, 10**5, 4 * 10**6))
    before, after = random.choice(((b"[", b"]"), (b'{"a":', b"}"), (b'[{"type":', b"}]")))
    depth = min(depth, SIZES[-1] // (len(before) + len(after)))
    ends = random.choice((after * depth + b"}]}", b""))
    return CHAT, _OF + _USER + before * depth + b"1" + ends


def _numbers(random: Random) -> Body:
    field = random.choice((b"max_tokens", b"n", b"best_of", b"temperature", b"stream", b"model", b"seed"))
    return random.choice((CHAT, COMPLETIONS, RESPONSES)), (
        _OF + b'"%s":%s,"prompt":"a","input":"a","messages":[]}' % (field, random.choice(NUMBERS))
    )


def _literals(random: Random) -> Body:
    literal = random.choice(LITERALS)
    model = random.choice((b'"%s"' % MODEL.encode(), literal))
    text = literal[:-1] + b"a" * random.choice((1, 2**16)) + literal[-1:]
    return CHAT, b'{"model":%s,"user":%s,%s%s}]}' % (model, literal, _USER, text)


def _escapes(random: Random) -> Body:
    escape = random.choice((rb"\u0061", rb"\n", rb"\ud83d\ude00", "é".encode(), "\U0001f600".encode()))
    return CHAT, _OF + _USER + b'"%s"}]}' % (escape * (random.choice(SIZES) // len(escape)))


def _model(random: Random) -> Body:
    name = random.choice((b"m", rb"\u0061", "é".encode(), b'\\"')) * (random.choice((300, 2**16, 2**20)))
    stream = random.choice((b"true", b"false"))
    return CHAT, b'{"model":"%s","stream":%s,"max_tokens":200,%s"a"}]}' % (name[: 2**22], stream, _USER)


def _blanks(random: Random) -> Body:
    blanks = random.choice((b" ", b"\n", b"\t \r\n")) * (random.choice(SIZES) // 4)
    return CHAT, blanks + _OF + blanks + _USER + b'"a"}]}' + blanks


def _mutated(random: Random) -> Body:
    """A request of the parsers' corpus, with a few bytes of it changed, cut out or doubled."""
    seed = random.choice(seeds("parsers")).read_bytes()
    line, _, body = seed.partition(b"\n")
    for _ in range(random.randint(1, 6)):
        at, end = sorted((random.randint(0, len(body)), random.randint(0, len(body))))
        put = random.choice(
            (b"", random.randbytes(3), body[at:end] * 2, b'"', b"{", b"[", b"\\", random.choice(NUMBERS))
        )
        body = body[:at] + put + body[min(end, at + random.randint(0, 8)) :]
    path = line.partition(b" ")[0].decode("latin-1")
    return path if path.startswith("/") and path.isprintable() and " " not in path else CHAT, body[: SIZES[-1]]


BODIES: dict[str, Callable[[Random], Body]] = {
    **{name: _repeated(name) for name in REPEATED},
    "nested": _nested,
    "numbers": _numbers,
    "literals": _literals,
    "escapes": _escapes,
    "model-names": _model,
    "blanks": _blanks,
    "mutated": _mutated,
}
