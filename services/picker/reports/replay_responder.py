"""Answers `ReplayQuery` with what a child finds out: this process only sends it the decisions, piece by piece."""

import asyncio

from msgspec import Struct

from services.picker.reports.past_records import Recorder, ReplayTask, Unsent, packed
from services.picker.request_handler import RequestHandler
from shared.bus.query_messages import MAX_ANSWER, MAX_WAIT, ReplayQuery
from shared.bus.responder import Document, QueryRefused, Steps
from shared.config.schema import BOUNDS, Bounds
from shared.service.child import Child, ChildFailed

CHILD = "services.picker.reports.replay"
STEP = 64 * 1024
"""Bytes that are made before a pause."""
PIECE = 64 * 1024
"""Bytes of the answer between two pauses."""
GRACE = MAX_WAIT / 10
"""Seconds."""


class DocumentRules(Struct, frozen=True):
    """What this picker's settings allow a document."""

    allow_experimental: bool = False
    bounds: Bounds = BOUNDS


class ReplayResponder:
    """Answers `ReplayQuery`, one at a time."""

    def __init__(
        self, handler: RequestHandler, rules: DocumentRules, child: str = CHILD, *, grace: float = GRACE
    ) -> None:
        """`child` is the module that replays. `grace` is how many seconds it gets for its answer when the time for
        replaying is over."""
        self._handler, self._rules, self._child, self._grace = handler, rules, child, grace
        self._busy = False

    def answer(self, query: ReplayQuery) -> Steps:
        """Raises QueryRefused while another one is under way, and if the child fails."""
        if self._busy:
            raise QueryRefused("another document is being replayed; try again in a few seconds")
        self._busy = True
        child = Child(self._child)
        try:
            yield from self._replay(query, child)
        except ChildFailed as error:
            raise QueryRefused(f"the document can't be replayed: {error}") from error
        finally:
            child.kill()
            self._busy = False

    def _replay(self, query: ReplayQuery, child: Child) -> Steps:
        until = self._handler.clock() + query.seconds
        yield (starting := asyncio.ensure_future(child.start()))
        starting.result()
        made = 0
        for piece in self.messages(query, until):
            if child.ended:
                break
            made += len(piece)
            if child.write(piece):
                yield asyncio.ensure_future(child.drain())
            elif made >= STEP:
                yield b""
            else:
                continue
            made = 0
        left = until - self._handler.clock()
        yield (answering := asyncio.ensure_future(child.answer(max(left, 0.0) + self._grace, MAX_ANSWER)))
        content = answering.result()
        for start in range(0, len(content), PIECE):
            yield content[start : start + PIECE]

    def messages(self, query: ReplayQuery, until: float) -> Document:
        """What the child is sent; each piece is made in less than a millisecond."""
        handler, rules = self._handler, self._rules
        yield packed(
            ReplayTask(
                text=query.text,
                running=handler.pipeline.config.text,
                allow_experimental=rules.allow_experimental,
                bounds=rules.bounds,
                until=until,
            )
        )
        recorder = Recorder(handler.view, handler.clock())
        newest = handler.ring.newest(query.limit)
        yield from recorder.present()
        sent = 0
        for decision in newest:
            if handler.clock() >= until:
                break
            yield from recorder.decision(decision)
            sent += 1
        yield packed(Unsent(len(newest) - sent))

    def __repr__(self) -> str:
        return f"<ReplayResponder{', one under way' if self._busy else ''}>"
