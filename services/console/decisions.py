"""Decisions of all pickers, which keep them: the console asks for what is new, and for one in full."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from services.console.feed import event
from shared.bus.columns import flow_hash
from shared.bus.connection import Bus
from shared.bus.errors import BusError, Malformed
from shared.bus.query_client import Answer, query_member, query_members
from shared.bus.query_messages import DecisionQuery, DecisionsQuery, ExplainQuery, QueryArguments
from shared.bus.subjects import Subjects
from shared.service.replay import ReplayAnswers, replay

PICKER = "picker"
TIMEOUT = 2.0
LIMIT = 200
"""Decisions that one answer has at most."""
MAX_FLOWS = 1000
"""Flows whose names are known."""
KEPT = 1000
"""Decisions of all pickers that the stream begins with."""
UNDER_WAY = "under way"

T = dict[str, Any]


class _Summary(Struct):
    """What the console reads of a decision's summary; pages get all of it."""

    at: str = ""
    state: str = ""
    flow: str = ""


class Newest(Struct):
    """A picker's last decisions."""

    total: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    """Of all its decisions."""
    decisions: Annotated[list[T], Meta(max_length=LIMIT)]
    """The newest first. Each can be read as a `_Summary`."""

    def __post_init__(self) -> None:
        msgspec.convert(self.decisions, list[_Summary])


class InFull(Struct):
    decisions: list[T]


class _Cursor(Struct):
    """How far a picker's decisions are known."""

    run: int = 0
    """Drawn when the picker started."""
    after: int = 0
    """All before are over, or too old to be asked for again."""
    shown: dict[int, T] = {}
    """Those from there on that have been sent, by their number."""


class Decisions:
    """What the pickers of a pool have decided."""

    def __init__(self, bus: Bus, subjects: Subjects, pool: str, pickers: Callable[[], list[str]]) -> None:
        self._bus, self._subjects, self._pool, self.pickers = bus, subjects, pool, pickers

    async def newest(self, picker: str, after: int) -> tuple[int, Newest]:
        """A picker's run, and its decisions behind so many. Raises BusError, Malformed."""
        answer = await self._ask(picker, DecisionsQuery(limit=LIMIT, after=after))
        return answer.run, answer.read(Newest)

    async def of_request(self, request_id: str) -> tuple[list[T], list[str]]:
        """The decisions on a request id of whichever pickers made them, and who has not answered, with the reason."""
        pickers = self.pickers()
        query = DecisionQuery(request_id=request_id)
        answers = await query_members(
            self._bus, self._subjects, self._pool, PICKER, query, timeout=TIMEOUT, expected=pickers
        )
        silent = {*pickers} - {answer.id for answer in answers}
        found, missing = list[T](), [f"{id} doesn't answer" for id in sorted(silent)]
        for answer in answers:
            try:
                found += [{**decision, "picker": answer.id} for decision in answer.read(InFull).decisions]
            except (BusError, Malformed) as error:
                missing.append(str(error))
        return sorted(found, key=lambda decision: str(decision.get("at")), reverse=True), missing

    async def explain(self, picker: str, query: ExplainQuery) -> T:
        """The decision that a picker would make now. Raises BusError, Malformed."""
        explained: T = (await self._ask(picker, query)).read(dict)
        return {**explained, "picker": picker}

    async def replay(self, text: str) -> ReplayAnswers:
        """Where the last decisions would have gone with another document. Raises NotConnected."""
        return await replay(self._bus, self._subjects, self._pool, text, expected=self.pickers())

    async def _ask(self, picker: str, query: QueryArguments) -> Answer:
        return await query_member(self._bus, self._subjects, self._pool, PICKER, picker, query, timeout=TIMEOUT)

    def __repr__(self) -> str:
        return f"<Decisions of {self._pool!r}>"


class DecisionsTopic:
    """Summaries of decisions as they are made, and again when they are over."""

    def __init__(self, decisions: Decisions, about: Callable[[], T]) -> None:
        self._decisions, self._about = decisions, about
        self._cursors: dict[str, _Cursor] = {}
        self._kept: deque[T] = deque(maxlen=KEPT)
        self._missing: list[str] = []
        self.flows: dict[str, str] = {}
        """Names of recent flows, by their hashes."""

    async def refresh(self) -> bytes | None:
        """What is new since the last call."""
        pickers = self._decisions.pickers()
        self._cursors = {id: cursor for id, cursor in self._cursors.items() if id in pickers}
        missing: list[str] = []
        found = await asyncio.gather(*(self._new_decisions(picker, missing) for picker in pickers))
        news = sorted((decision for some in found for decision in some), key=lambda decision: str(decision.get("at")))
        if not news and missing == self._missing:
            return None
        self._missing = sorted(missing)
        for decision in news:
            if flow := decision.get("flow"):
                self.flows.pop(hash := f"{flow_hash(flow):016x}", None)
                self.flows[hash] = flow
        while len(self.flows) > MAX_FLOWS:
            del self.flows[next(iter(self.flows))]
        replaced = {decision["key"] for decision in news}
        self._kept = deque((decision for decision in self._kept if decision["key"] not in replaced), maxlen=KEPT)
        self._kept.extend(news)
        return event("changes", msgspec.json.encode({"decisions": news, "missing": self._missing}))

    def whole(self) -> bytes:
        content = {"about": self._about(), "decisions": list(self._kept), "missing": self._missing}
        return event("whole", msgspec.json.encode(content))

    async def _new_decisions(self, picker: str, missing: list[str]) -> list[T]:
        cursor = self._cursors.setdefault(picker, _Cursor())
        try:
            run, newest = await self._decisions.newest(picker, cursor.after)
            if run != cursor.run and cursor.run:
                cursor = self._cursors[picker] = _Cursor()
                run, newest = await self._decisions.newest(picker, 0)
        except (BusError, Malformed) as error:
            missing.append(str(error))
            return []
        cursor.run = run
        numbered = {newest.total - at: decision for at, decision in enumerate(newest.decisions)}
        news = [
            {**decision, "picker": picker, "key": f"{picker}/{run}/{number}"}
            for number, decision in sorted(numbered.items())
            if cursor.shown.get(number) != decision
        ]
        open_ones = [number for number, decision in numbered.items() if decision.get("state") == UNDER_WAY]
        cursor.after = max(min(open_ones, default=newest.total + 1) - 1, newest.total - LIMIT, 0)
        cursor.shown = {number: decision for number, decision in numbered.items() if number > cursor.after}
        return news

    def __repr__(self) -> str:
        return f"<DecisionsTopic {len(self._kept)} decisions>"
