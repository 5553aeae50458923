"""Puts a model's name back in a JSON object while it passes, for proxies that accept no late bytes.

`document` needs the whole object. This rewriter tracks only its position in the object: the level and the key. It holds
back only what is, or may be, the beginning of the name; everything else passes with the piece that it came in. It
rewrites the same names as `document`. A text that isn't JSON passes unchanged from where this shows.
"""

import re

from services.picker.responses.document import ESCAPED, is_name

_MODEL = b"model"
_INNER = (b"response", b"message")
"""Keys whose objects have the name too, one level down."""
_MAX_KEY = 64
"""Bytes of a key that are read: no spelling of the keys above has more."""
_STEPS = 10_000
"""Marks of a piece that are read, at a microsecond each. The rest of the response passes unread."""
_MAX_PIECE = 128 * 2**10
"""Bytes of a piece that is read."""

_BLANKS = re.compile(rb"[ \t\r\n]*")
_SHALLOW = re.compile(rb'[^"{}\[\],:]*')
_DEEP = re.compile(rb'[^"{}\[\]]*(?:"[^"\\]*(?:\\.[^"\\]*)*"[^"{}\[\]]*)*', re.DOTALL)
"""Inside a value that isn't read: whole strings, and everything else up to a bracket."""
_STRING = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
"""The rest of a string, without its closing quote."""
_QUOTE, _COLON, _COMMA, _OPEN, _CLOSE = b'":,{}'


class ModelNameRewriter:
    """Passes one object. `target` becomes `client` (both as JSON strings). `lead` has to precede the object: a text
    that begins otherwise passes unchanged."""

    def __init__(self, target: bytes, client: bytes, lead: bytes = b"") -> None:
        self._target = target
        self._client = client
        self._lead = lead
        """The part that hasn't come yet."""
        self._level = 0
        """1 in the object, 2 in one of the inner ones, 0 before it."""
        self._depth = 0
        """Open brackets of a value that isn't read."""
        self._key = b""
        self._partial: bytes | None = None
        """The beginning of a key that isn't complete."""
        self._value = False
        """Whether a value follows."""
        self._string = False
        """Whether the position is in a string that isn't read."""
        self._escaped = False
        """Whether the last byte was a backslash that escapes the next."""
        self._held = b""
        self.done = False
        """Whether the object has ended, or isn't one: what follows passes."""

    def feed(self, piece: bytes) -> bytes:
        """Take a piece; the bytes that go on."""
        if self.done or len(piece) > _MAX_PIECE:
            return self.rest() + piece
        steps = _STEPS
        text, self._held = self._held + piece if self._held else piece, b""
        out: list[bytes] = []
        sent, at, size = 0, self._begin(text), len(text)
        while at < size and not self.done:
            steps -= 1
            if steps < 0:
                self.done = True
            elif self._string or self._partial is not None:
                at = self._in_string(text, at)
            elif self._depth:
                at = self._in_depth(text, at)
            else:
                at = _end(_SHALLOW, text, at)
                end = self._name_at(text, at)
                if end > size:
                    self._held = text[at:]
                    text = text[:at]
                    break
                if end:
                    out += (text[sent:at], self._client)
                    sent = at = end
                    self._value = False
                elif at < size:
                    self._step(text[at])
                    at += 1
        if not sent:
            return text
        out.append(text[sent:])
        return b"".join(out)

    def rest(self) -> bytes:
        """The held bytes, when nothing follows."""
        held, self._held = self._held, b""
        self.done = True
        return held

    def _begin(self, text: bytes) -> int:
        """The position of the object's first key."""
        at = 0
        if self._lead:
            at = min(len(self._lead), len(text))
            self.done = text[:at] != self._lead[:at]
            self._lead = self._lead[at:]
        if not self._level and not self._lead:
            at = _end(_BLANKS, text, at)
            if at < len(text):
                self.done = self.done or text[at] != _OPEN
                self._level = 1
                at += 1
        return at

    def _name_at(self, text: bytes, at: int) -> int:
        """Where the name ends that begins here: beyond the text, when it may go on in the next piece; 0 for none."""
        if at == len(text) or not self._value or self._key != _MODEL or text[at] != _QUOTE:
            return 0
        end = _end(_STRING, text, at + 1)
        if text[end : end + 1] == b'"':
            return end + 1 if is_name(text[at : end + 1], self._target) else 0
        return len(text) + 1 if self._may_be_name(text[at:]) else 0

    def _step(self, mark: int) -> None:
        """Step over a mark in one of the objects that are read."""
        if mark == _QUOTE:
            if self._value:
                self._string = True
            else:
                self._partial = b""
        elif mark == _COLON:
            self._value = True
            return
        elif mark == _COMMA:
            self._key = b""
        elif mark == _OPEN and self._value and self._level == 1 and self._key in _INNER:
            self._level, self._key = 2, b""
        elif mark == _CLOSE:
            self._level, self._key = self._level - 1, b""
            self.done = not self._level
        else:
            self._depth = 1
        self._value = False

    def _in_string(self, text: bytes, at: int) -> int:
        """Go to the end of a string or key, as far as it has come."""
        start = at
        if self._escaped:
            at += 1
            self._escaped = False
        end = _end(_STRING, text, at)
        closed = end < len(text) and text[end] == _QUOTE
        self._escaped = end < len(text) and not closed
        if self._partial is not None:
            self._partial = (self._partial + text[start : end + self._escaped])[:_MAX_KEY]
            if closed:
                self._key, self._partial = _plain(self._partial), None
        elif closed:
            self._string = False
        return end + 1

    def _in_depth(self, text: bytes, at: int) -> int:
        at = _end(_DEEP, text, at)
        if at < len(text):
            mark = text[at]
            if mark == _QUOTE:
                self._string = True
            else:
                self._depth += 1 if mark in b"{[" else -1
        return at + 1

    def _may_be_name(self, begun: bytes) -> bool:
        """Whether a string that has begun like this may become the name. One with escapes may as long as what stands
        before them does, and it isn't longer than any spelling of the name."""
        plain, escape, _ = begun.partition(b"\\")
        return self._target.startswith(plain) and (not escape or len(begun) <= ESCAPED * len(self._target))

    def __repr__(self) -> str:
        state = "done" if self.done else f"level {self._level}, depth {self._depth}"
        return f"<ModelNameRewriter {state}, holds {len(self._held)} bytes>"


def _end(pattern: re.Pattern[bytes], text: bytes, at: int) -> int:
    """Where a pattern that also matches nothing ends."""
    found = pattern.match(text, at)
    return found.end() if found else at


def _plain(key: bytes) -> bytes:
    """A key without escapes."""
    for name in (_MODEL, *_INNER):
        if b"\\" in key and is_name(b'"' + key + b'"', b'"' + name + b'"'):
            return name
    return key
