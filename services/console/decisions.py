"""Decisions of all pickers, which keep them: the console asks for what is new, and for one in full."""

import asyncio
import re
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter, itemgetter
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, json
from xxhash import xxh3_64_intdigest

from services.console.feed import event
from shared.bus.columns import flow_hash
from shared.bus.connection import Bus
from shared.bus.errors import BusError, Malformed
from shared.bus.query_client import Answer, query_member, query_members
from shared.bus.query_messages import DecisionQuery, DecisionsQuery, ExplainQuery, QueryArguments
from shared.bus.subjects import Subjects
from shared.service.replay import ReplayAnswers, replay
from shared.tasks import in_turns

PICKER = "picker"
TIMEOUT = 2.0
LIMIT = 200
"""Decisions that one answer has at most."""
MAX_FLOWS = 1000
"""Flows whose names are known."""
KEPT = 1000
"""Decisions of all pickers that the stream begins with."""
UNDER_WAY = "under way"
ASKED = 16
"""Pickers that are asked for new decisions at once: an answer may have megabytes."""
ROUND = 4.0
"""Seconds for all of them. Pickers that are silent, or invented, don't keep the page from others' decisions."""
MAX_SUMMARY = 16 * 1024
"""Bytes of a summary: pickers cut its texts to 256 characters."""
KEPT_BYTES = 2 * 2**20
"""Of the decisions that the stream begins with: some 4 000 summaries of usual names."""

_EMPTY = re.compile(rb"\{\s*\}")
_Text = str | UnsetType | None


class _Refused(Struct, omit_defaults=True):
    status: int
    message: str = ""
    reason: str = ""


class Summary(Struct, omit_defaults=True):
    """A decision, as `DecisionSummary` of pickers; pages get what is known here, and nothing else of an answer."""

    request_id: str | UnsetType = UNSET
    at: str = ""
    state: str = ""
    model: str | UnsetType = UNSET
    target_model: str | UnsetType = UNSET
    objective: str | UnsetType = UNSET
    priority: int | UnsetType = UNSET
    waited_seconds: float | UnsetType | None = UNSET
    microseconds: float | UnsetType | None = UNSET
    destinations: list[str] | UnsetType = UNSET
    endpoint: str | UnsetType = UNSET
    served_by: _Text = UNSET
    served_endpoint: _Text = UNSET
    status: int | UnsetType | None = UNSET
    refused: _Refused | UnsetType = UNSET
    flow: str | UnsetType = UNSET
    duration_seconds: float | UnsetType | None = UNSET
    plugin_failures: list[dict[str, str]] | UnsetType = UNSET
    picker: str = ""
    key: str = ""
    """Distinguishes it from all others."""


class Newest(Struct):
    """A picker's last decisions."""

    total: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """Of all its decisions."""
    decisions: Annotated[list[Summary], Meta(max_length=LIMIT)]
    """The newest first."""


class InFull(Struct):
    decisions: list[Raw]


class _InFull(Struct):
    """What the console reads of a decision in full; pages get all of it."""

    at: str = ""


class _Shown(Struct, frozen=True):
    """A decision as it is sent."""

    at: str
    key: str
    flow: str
    text: bytes


class _Cursor(Struct):
    """How far a picker's decisions are known."""

    run: int = 0
    """Drawn when the picker started."""
    after: int = 0
    """All before are over, or too old to be asked for again."""
    shown: dict[int, int] = {}
    """Digests of those from there on that have been sent, by their number."""


class Decisions:
    """What the pickers of a pool have decided."""

    def __init__(self, bus: Bus, subjects: Subjects, pool: str, pickers: Callable[[], list[str]]) -> None:
        self._bus, self._subjects, self._pool, self.pickers = bus, subjects, pool, pickers

    async def newest(self, picker: str, after: int) -> tuple[int, Newest]:
        """A picker's run, and its decisions behind so many. Raises BusError, Malformed."""
        answer = await self._ask(picker, DecisionsQuery(limit=LIMIT, after=after))
        return answer.run, answer.read(Newest)

    async def of_request(self, request_id: str) -> tuple[list[bytes], list[str]]:
        """The decisions on a request id of whichever pickers made them, the newest first, as JSON; and who has not
        answered, with the reason."""
        pickers = self.pickers()
        query = DecisionQuery(request_id=request_id)
        answers = await query_members(
            self._bus, self._subjects, self._pool, PICKER, query, timeout=TIMEOUT, expected=pickers
        )
        silent = {*pickers} - {answer.id for answer in answers}
        found, missing = list[tuple[str, bytes]](), [f"{id} doesn't answer" for id in sorted(silent)]
        for answer in answers:
            try:
                _check_text(answer)
                await asyncio.sleep(0)
                async for decision in in_turns(answer.read(InFull).decisions, turn=0.0):
                    at = json.decode(decision, type=_InFull).at
                    await asyncio.sleep(0)
                    found.append((at, _with_picker(decision, answer.id)))
            except BusError as error:
                missing.append(str(error))
            except msgspec.DecodeError as error:
                missing.append(f"picker {answer.id} has an answer that can't be read: {error}")
            await asyncio.sleep(0)
        return [text for _, text in sorted(found, key=itemgetter(0), reverse=True)], missing

    async def explain(self, picker: str, query: ExplainQuery) -> bytes:
        """The decision that a picker would make now, as JSON. Raises BusError, Malformed."""
        answer = await self._ask(picker, query)
        _check_text(answer)
        await asyncio.sleep(0)
        answer.read(_InFull)
        await asyncio.sleep(0)
        return _with_picker(answer.content.strip(), picker)

    async def replay(self, text: str) -> ReplayAnswers:
        """Where the last decisions would have gone with another document. Raises NotConnected."""
        return await replay(self._bus, self._subjects, self._pool, text, expected=self.pickers())

    async def _ask(self, picker: str, query: QueryArguments) -> Answer:
        return await query_member(self._bus, self._subjects, self._pool, PICKER, picker, query, timeout=TIMEOUT)

    def __repr__(self) -> str:
        return f"<Decisions of {self._pool!r}>"


class DecisionsTopic:
    """Summaries of decisions as they are made, and again when they are over."""

    def __init__(self, decisions: Decisions, about: Callable[[], dict[str, Any]]) -> None:
        self._decisions, self._about = decisions, about
        self._cursors: dict[str, _Cursor] = {}
        self._kept: deque[_Shown] = deque()
        self._missing: list[str] = []
        self._asking = asyncio.Semaphore(ASKED)
        self._silent: dict[str, None] = {}
        """Pickers that didn't answer when they were last asked, the longest ago first."""
        self.flows: dict[str, str] = {}
        """Names of recent flows, by their hashes."""

    async def refresh(self) -> bytes | None:
        """What is new since the last call."""
        pickers = self._decisions.pickers()
        self._cursors = {id: cursor for id, cursor in self._cursors.items() if id in pickers}
        self._silent = {id: None for id in self._silent if id in pickers}
        missing: list[str] = []
        news = deque[_Shown]()
        left = set(pickers)

        async def ask(picker: str) -> None:
            nonlocal news
            async with self._asking:
                self._silent.pop(picker, None)
                self._silent[picker] = None
                try:
                    found = await self._new_decisions(picker)
                    del self._silent[picker]
                except BusError as error:
                    missing.append(str(error))
                    found = []
                left.discard(picker)
                if found:
                    news = _newest(sorted([*news, *found], key=attrgetter("at")))

        with suppress(TimeoutError):
            async with asyncio.timeout(ROUND):
                others = [id for id in pickers if id not in self._silent]
                others.sort(key=lambda id: id not in self._cursors)
                await asyncio.gather(*map(ask, [*others, *self._silent]))
        if left:
            missing.append(f"{len(left)} pickers have not answered within {ROUND:g} s")
        if not news and missing == self._missing:
            return None
        self._missing = sorted(missing)
        for decision in news:
            if flow := decision.flow:
                self.flows.pop(hash := f"{flow_hash(flow):016x}", None)
                self.flows[hash] = flow
        while len(self.flows) > MAX_FLOWS:
            del self.flows[next(iter(self.flows))]
        replaced = {decision.key for decision in news}
        self._kept = _newest([*(decision for decision in self._kept if decision.key not in replaced), *news])
        return event("changes", self._content({}, news))

    async def whole(self) -> bytes:
        return event("whole", self._content({"about": self._about()}, self._kept))

    def _content(self, head: dict[str, Any], decisions: Iterable[_Shown]) -> bytes:
        texts = (Raw(decision.text) for decision in decisions)
        return json.encode({**head, "decisions": list(texts), "missing": self._missing})

    async def _new_decisions(self, picker: str) -> list[_Shown]:
        """Raises BusError."""
        cursor = self._cursors.setdefault(picker, _Cursor())
        run, newest = await self._decisions.newest(picker, cursor.after)
        if run != cursor.run and cursor.run:
            cursor = self._cursors[picker] = _Cursor()
            run, newest = await self._decisions.newest(picker, 0)
        numbered = {newest.total - at: decision for at, decision in enumerate(newest.decisions)}
        shown = {number: _shown(decision, picker, run, number) for number, decision in sorted(numbered.items())}
        cursor.run = run
        digests = {number: xxh3_64_intdigest(decision.text) for number, decision in shown.items()}
        news = [decision for number, decision in shown.items() if cursor.shown.get(number) != digests[number]]
        open_ones = [number for number, decision in numbered.items() if decision.state == UNDER_WAY]
        cursor.after = max(min(open_ones, default=newest.total + 1) - 1, newest.total - LIMIT, 0)
        cursor.shown = {number: digest for number, digest in digests.items() if number > cursor.after}
        return news

    def __repr__(self) -> str:
        return f"<DecisionsTopic {len(self._kept)} decisions>"


def _shown(decision: Summary, picker: str, run: int, number: int) -> _Shown:
    """Raises Malformed."""
    decision.picker, decision.key = picker, f"{picker}/{run}/{number}"
    text = json.encode(decision)
    if len(text) > MAX_SUMMARY:
        raise Malformed(f"picker {picker} answers with a summary of {len(text)} bytes; {MAX_SUMMARY} are allowed")
    return _Shown(decision.at, decision.key, decision.flow or "", text)


def _newest(decisions: Sequence[_Shown]) -> deque[_Shown]:
    """As many of the last ones as are kept."""
    kept, left = deque[_Shown](), KEPT_BYTES
    for decision in reversed(decisions):
        left -= len(decision.text)
        if left < 0 or len(kept) == KEPT:
            break
        kept.appendleft(decision)
    return kept


def _check_text(answer: Answer) -> None:
    """Parts of a document that nobody reads may be anything else than text. Raises Malformed."""
    try:
        if not answer.content.isascii():
            str(answer.content, "utf-8")
    except UnicodeDecodeError as error:
        raise Malformed(f"{answer.tier} {answer.id} has an answer that can't be read: {error.reason}") from error


def _with_picker(decision: Raw | bytes, picker: str) -> bytes:
    """A JSON object and who made it; other members of that name don't count."""
    separator = b"" if _EMPTY.match(decision) else b","
    return b"".join((memoryview(decision)[:-1], separator, b'"picker":', json.encode(picker), b"}"))
