"""Answers pickers that have missed prefix placements: reports what this picker has, repeats batches, sends dumps."""

import asyncio
from collections.abc import Callable
from functools import partial

import structlog

from services.picker.state.lru_prefix_index import LruPrefixIndex
from services.picker.state.prefix_announcements import Announcements, Dumps, dump
from services.picker.state.prefix_peers import PrefixPeers
from shared.bus import Msg
from shared.bus.codec import encode
from shared.bus.connection import Bus
from shared.bus.errors import BusError
from shared.bus.messages import PrefixBatch, PrefixPiece, PrefixRequest
from shared.bus.reply_subjects import is_answerable
from shared.bus.subjects import Subjects
from shared.plugin import Tier

log = structlog.get_logger(__name__)

MAX_REQUESTS = 64
"""Requests in the queue; further ones are dropped, and peers ask again."""


class PrefixAnswers:
    """The requests that wait, and the dumps that are being given."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        everybody: str,
        index: LruPrefixIndex,
        peers: PrefixPeers,
        announcements: Announcements,
        heartbeat: Callable[[], PrefixBatch],
        clock: Callable[[], float],
    ) -> None:
        """`heartbeat` makes the answer to requests on `everybody`, the subject of all pickers."""
        self._bus, self._subjects, self._everybody = bus, subjects, everybody
        self._index, self._peers, self._announcements = index, peers, announcements
        self._heartbeat, self._clock = heartbeat, clock
        self._requests: asyncio.Queue[Msg] = asyncio.Queue(MAX_REQUESTS)
        self._dumps = Dumps()
        self.asked_at = float("-inf")
        """When a request was answered last."""

    def receive(self, message: Msg) -> None:
        """A request has come."""
        answerable = is_answerable(message, self._subjects, Tier.PICKER, self._bus.malformed)
        if answerable and not self._requests.full():
            self._requests.put_nowait(message)

    async def run(self) -> None:
        """Answer requests until cancelled."""
        while True:
            message = await self._requests.get()
            request = self._bus.malformed.decode(PrefixRequest, message.data, message.subject)
            if request is None:
                continue
            self.asked_at = self._clock()
            answer = self._heartbeat() if message.subject == self._everybody else self._piece(request)
            if answer is not None:
                try:
                    await self._bus.publish(message.reply, encode(answer))
                except BusError as error:
                    log.warning("prefixes.answer.failed", peer=request.sender, reason=str(error))
            await asyncio.sleep(0)

    def _piece(self, request: PrefixRequest) -> PrefixPiece | None:
        announcements = self._announcements
        session, now = request.session, self._clock()
        if not session:
            if request.run not in (0, announcements.run):
                return PrefixPiece(run=announcements.run, sequence=announcements.sequence)
            if request.run and (repeated := announcements.since(request.after)):
                batches, more = repeated
                return PrefixPiece(run=announcements.run, sequence=announcements.sequence, batches=batches, more=more)
            if not self._dumps.have_room(now):
                return PrefixPiece(run=announcements.run, sequence=announcements.sequence, busy=True)
            origins, known = self._peers.table(
                announcements.id, announcements.run, announcements.sequence, announcements.digest
            )
            if request.run:  # of this picker's own placements alone
                origins, known = origins[:1], 1
            session = self._dumps.begin(partial(dump, self._index, announcements, origins, known), now)
        return self._dumps.next(session, now)

    def __repr__(self) -> str:
        return f"<PrefixAnswers of {self._announcements.id!r}: {self._requests.qsize()} waiting, {self._dumps!r}>"
