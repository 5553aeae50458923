"""Queries members over the bus: one of them, or all of a tier within a bounded time."""

import asyncio
from collections.abc import Collection
from typing import Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from shared.bus.codec import UNKNOWN_SENDER, decode, encode
from shared.bus.connection import Bus
from shared.bus.errors import BusError, Malformed, NoResponders, RequestTimeout
from shared.bus.query_messages import MAX_TOTAL, AnswerPiece, QueryArguments, make_query
from shared.bus.subjects import Subjects
from shared.digits import Numbers

T = TypeVar("T")

PIECE, MAX_PIECES = 500, 10_000
"""Bytes for which each piece of an answer counts in addition, and how many an answer of one member has at most: others
may answer in its place."""
VALUE = 100
"""Bytes for which each value counts in it, at least what it takes once it is read."""


class QueryFailed(BusError):
    """A member refused a query, with the reason."""


_Member: TypeAlias = tuple[str, str, int]
"""Who answers: id, tier and run."""


class Answer(Struct, frozen=True):
    """What a member has answered."""

    id: str
    tier: str
    run: int
    """Distinguishes two processes with one id."""
    content: bytes
    """A JSON document; half of one, or nothing, if there is an error."""
    error: str = ""

    def document(self) -> Any:
        """The document as it is. Raises as `read`."""
        return self.read(object)

    def read(self, kind: type[T]) -> T:
        """The document. Raises QueryFailed, or Malformed if it isn't what is expected."""
        if self.error:
            raise QueryFailed(f"{self.tier} {self.id}: {self.error}")
        try:
            return msgspec.json.decode(self.content, type=kind)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Malformed(f"{self.tier} {self.id} has an answer that can't be read: {error}") from error


class _Parts:
    """An answer that isn't complete, which may have so many bytes and values."""

    def __init__(self, limits: tuple[int, int]) -> None:
        self.content: list[bytes] = []
        self._bytes, self._values = limits
        self._numbers = Numbers()

    def add(self, content: bytes, values: int) -> str:
        """Why it can't be added; empty if it was."""
        self._bytes -= len(content)
        self._values -= values
        if self._bytes < 0 or self._values < 0:
            return "the answer is too large"
        if self._numbers.too_long(content):
            return "the answer has a number with too many digits"
        self.content.append(content)
        return ""


def _count_values(content: bytes) -> int:
    """Of a piece of JSON, at least as many as it has: what commas separate and brackets begin."""
    return content.count(b",") + content.count(b"[") + content.count(b"{")


class AnswerPieces:
    """The pieces of the answers to one query, in the order in which each member sends them. `each`: bytes and values of
    one answer. With `tier`, answers of others are malformed."""

    def __init__(
        self, limit: int = MAX_TOTAL, each: tuple[int, int] = QueryArguments.LIMITS, *, tier: str = ""
    ) -> None:
        self._left = limit
        self._each = each
        self._tier = tier
        self._parts: dict[_Member, _Parts] = {}
        """Of answers that aren't complete."""
        self.pieces = 0
        self.whole: dict[_Member, Answer] = {}
        """Answers that are complete."""
        self.ids: set[str] = set()
        """Of those who gave them."""

    @property
    def begun(self) -> bool:
        """Whether an answer has begun that isn't complete."""
        return not self._parts.keys() <= self.whole.keys()

    @property
    def full(self) -> bool:
        """Whether the answers are too large: nothing more is taken."""
        return self._left < 0

    def take(self, data: bytes) -> Answer | None:
        """A piece has come; the answer that it completes. Raises Malformed."""
        self._left -= len(data) + PIECE
        if self.full:
            raise Malformed("the answers are too large")
        piece = decode(AnswerPiece, data)
        values = _count_values(piece.content)
        self._left -= VALUE * values
        if self.full:
            raise Malformed("the answers are too large")
        if self._tier not in ("", piece.tier):
            raise Malformed(f"a {self._tier} was asked, and {piece.sender!r} answers as {piece.tier!r}")
        member = piece.sender, piece.tier, piece.run
        parts = self._parts.get(member)
        if parts is None:
            parts = self._parts[member] = _Parts(self._each)
        self.pieces += 1
        lost = "" if piece.number == len(parts.content) else "a part of the answer got lost"
        error = piece.error or lost or parts.add(piece.content, values)
        if piece.more and not error:
            return None
        del self._parts[member]
        answer = self.whole.setdefault(member, Answer(*member, content=b"".join(parts.content), error=error))
        self.ids.add(answer.id)
        return answer

    def answers(self) -> list[Answer]:
        """Those that are complete, and the others with an error, sorted."""
        why = "the answers are too large" if self.full else "the rest of the answer didn't come in time"
        cut = [
            Answer(*member, content=b"".join(parts.content), error=why)
            for member, parts in self._parts.items()
            if member not in self.whole
        ]
        return sorted([*self.whole.values(), *cut], key=lambda answer: (answer.tier, answer.id, answer.run))

    def __repr__(self) -> str:
        return f"<AnswerPieces {len(self.whole)} answers, {len(self._parts)} begun>"


async def query_member(
    bus: Bus, subjects: Subjects, pool: str, tier: str, id: str, query: QueryArguments, *, timeout: float = 5.0
) -> Answer:
    """One member's answer, which may be an error. Raises NoResponders if there is no such member, RequestTimeout,
    NotConnected, Malformed if what others sent instead is too large."""
    most, values = query.LIMITS
    collected = AnswerPieces(most + VALUE * values + MAX_PIECES * PIECE, query.LIMITS, tier=tier)

    def is_last(message: Msg) -> bool:
        try:
            return collected.take(message.data) is not None
        except Malformed as error:
            bus.malformed.report(id, error, subject=message.subject)
            return collected.full

    subject = subjects.query(pool, tier, id)
    try:
        await bus.request_many(subject, encode(make_query(query, timeout)), last=is_last, timeout=timeout)
    except RequestTimeout:
        if not (answers := collected.answers()):
            raise
        return answers[0]
    answers = [*collected.whole.values(), *collected.answers()]
    if not answers:
        raise Malformed(f"the answers for {tier} {id} are too large")
    return answers[0]


async def query_members(
    bus: Bus,
    subjects: Subjects,
    pool: str,
    tier: str,
    query: QueryArguments,
    *,
    timeout: float = 1.0,
    expected: Collection[str] = (),
    first: bool = False,
    quiet: float | None = None,
) -> list[Answer]:
    """The answers of all members of a tier, by id, that come within `timeout` seconds; those that are cut off have an
    error. It ends early when all of the `expected` ids have answered, if there are any; with the `first` answer that is
    no error; or when there are answers, all whole, and nothing has come for `quiet` seconds. No members: an empty list.
    Raises NotConnected."""
    collected = AnswerPieces(query.MAX_TOTAL, query.LIMITS, tier=tier)
    wanted = set(expected)

    def is_last(message: Msg) -> bool:
        try:
            answer = collected.take(message.data)
        except Malformed as error:
            bus.malformed.report(UNKNOWN_SENDER, error, subject=message.subject)
            return collected.full
        if answer is None:
            return False
        if first and not answer.error:
            return True
        return bool(wanted) and wanted <= collected.ids

    payload = encode(make_query(query, timeout))
    request = asyncio.ensure_future(
        bus.request_many(subjects.query(pool, tier), payload, last=is_last, timeout=timeout)
    )
    try:
        pieces = -1
        while not request.done():
            await asyncio.wait({request}, timeout=quiet)
            if collected.whole and collected.pieces == pieces and not collected.begun:
                return collected.answers()
            pieces = collected.pieces
        await request
    except (NoResponders, RequestTimeout):
        pass
    finally:
        request.cancel()
    return collected.answers()
