"""Queries: requests that any member of a tier answers over the bus.

A query is one message. An answer is a JSON document that comes in pieces, so that people and browsers can read it as it
is. It can be long, and making it can take a while: a member makes it in steps, and sends each when it has it.
"""

from math import isfinite
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta, Struct

from shared.bus.subjects import MAX_ID

MAX_KIND = 64
"""Characters of a query's kind."""
MAX_ERROR = 1024
"""Characters of an answer's error."""
MAX_PIECE = 64 * 2**10
"""Bytes of a document in a piece."""
MAX_WAIT = 30.0
"""Seconds for which a member works on a query at most, however long the requester would wait."""
MAX_HEADERS = 1000
"""Of a request that is to be explained."""
MAX_DOCUMENT = 900_000
"""Bytes of a document that is to be replayed: a query is one message."""
MAX_ANSWER, MAX_VALUES = 32 * 2**20, 1_000_000
"""Bytes and values of an answer: a value takes a hundred times the memory and time of a byte."""
MAX_SHORT, MAX_FEW = 8 * 2**20, 50_000
"""The same of answers that are asked for all the time, and of replays, whose lists are cut: these are read in some
milliseconds. A picker's status with a thousand peers has 0.4 MB and 20 000 values."""
MAX_TOTAL, MAX_SHORT_TOTAL = 256 * 2**20, 128 * 2**20
"""Bytes of the answers of all members; of those that are short. Each piece and each value of an answer counts for more.
What exceeds them ends the query."""
NO_ARGUMENTS = msgspec.Raw(b"\x80")

Text = Annotated[str, Meta(max_length=4096)]
_Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]


class Query(Struct, frozen=True, kw_only=True, tag="query/1"):
    """Asks one member, or all members of a tier, by the subject."""

    kind: Annotated[str, Meta(max_length=MAX_KIND)]
    """`status`, `decisions`, …: the `KIND` of a `QueryArguments`."""
    arguments: msgspec.Raw = NO_ARGUMENTS
    """MessagePack of the `QueryArguments`."""
    within: float = 5.0
    """Seconds for which the requester waits."""

    def fault(self) -> str | None:
        """Why it is implausible, or None."""
        return None if isfinite(self.within) and self.within > 0 else f"the requester waits for {self.within} s"


class AnswerPiece(Struct, frozen=True, kw_only=True, tag="answer/1"):
    """A piece of a member's answer. The answer is whole when the piece without `more` has come, and all before it."""

    sender: Annotated[str, Meta(max_length=MAX_ID)]
    """The member's id."""
    tier: Annotated[str, Meta(max_length=MAX_KIND)]
    run: _Number
    """Drawn when the member started: distinguishes two processes with one id."""
    number: _Number
    """Counts the pieces from 0."""
    more: bool = False
    content: Annotated[bytes, Meta(max_length=MAX_PIECE)] = b""
    """What follows of the JSON document."""
    error: Annotated[str, Meta(max_length=MAX_ERROR)] = ""
    """Why the document isn't there or ends here; empty if nothing is wrong."""


class QueryArguments(Struct, frozen=True, kw_only=True):
    """The arguments of one kind of query. A member ignores those that it doesn't know."""

    KIND: ClassVar[str]
    LIMITS: ClassVar[tuple[int, int]] = (MAX_ANSWER, MAX_VALUES)
    """Bytes and values of an answer that the asker reads."""
    MAX_TOTAL: ClassVar[int] = MAX_TOTAL
    """Bytes of all members' answers, about as they are in memory."""


class StatusQuery(QueryArguments, frozen=True):
    """How the member is: a `shared.service.status.MemberStatus`. Every tier answers it."""

    KIND = "status"
    LIMITS = (MAX_SHORT, MAX_FEW)
    MAX_TOTAL = MAX_SHORT_TOTAL


class ViewQuery(QueryArguments, frozen=True):
    """What the member knows, without ages, sorted: members that know the same give the same text. The page
    `/debug/view`."""

    KIND = "view"
    endpoint: Text = ""
    """The id or name of the only endpoint to show, with ages, and with what became of it in decisions; empty shows
    everything."""


class DecisionsQuery(QueryArguments, frozen=True):
    """A picker's last decisions, the newest first: `{"total", "decisions"}`."""

    KIND = "decisions"
    LIMITS = (MAX_SHORT, MAX_FEW)
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    after: _Number = 0
    """Only those behind so many: the `total` of an earlier answer of the same run."""
    full: bool = False
    """Whether each is to be explained; else a summary of each."""


class DecisionQuery(QueryArguments, frozen=True):
    """A picker's decisions on a request id in full, the newest first: `{"decisions"}`, empty if it made none."""

    KIND = "decision"
    request_id: Text
    limit: Annotated[int, Meta(ge=1, le=100)] = 10


class ExplainQuery(QueryArguments, frozen=True):
    """The decision that a picker would make on this request now. Nothing is sent, charged or remembered."""

    KIND = "explain"
    method: Text = "POST"
    path: Text = "/v1/chat/completions"
    headers: Annotated[list[tuple[Text, str]], Meta(max_length=MAX_HEADERS)] = []
    """Names and values."""
    body: bytes = b""
    subset: Annotated[list[Text], Meta(max_length=MAX_HEADERS)] | None = None
    """The gateway's subset hint; None: no hint."""


class ReplayQuery(QueryArguments, frozen=True):
    """Where a picker's last decisions would have gone with another EndpointPickerConfig: a
    `shared.service.replay.Replay`. Nothing is published."""

    KIND = "replay"
    LIMITS = (MAX_SHORT, MAX_FEW)
    text: Annotated[str, Meta(max_length=MAX_DOCUMENT)]
    limit: Annotated[int, Meta(ge=1, le=100_000)] = 1000
    """Of the decisions that the picker keeps, how many of the newest."""
    seconds: Annotated[float, Meta(gt=0, le=MAX_WAIT)] = 20.0
    """After which it answers with what it has replayed by then."""


def make_query(query: QueryArguments, within: float) -> Query:
    """The message that asks this."""
    arguments: Any = msgspec.msgpack.encode(query)
    return Query(kind=query.KIND, arguments=msgspec.Raw(arguments), within=within)
