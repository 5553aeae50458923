"""Answers queries over the bus, without harm to what the process is there for.

Answers are made in steps, one step at a time, and after each the process rests for a multiple of what the step took: so
queries get a bounded share of the event loop and of the connection, however many come. What doesn't fit is refused.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from typing import Any, TypeAlias

import msgspec
import structlog
from nats.aio.msg import Msg

from shared.bus.codec import encode
from shared.bus.connection import Bus
from shared.bus.errors import BusError
from shared.bus.query_messages import MAX_ANSWER, MAX_ERROR, MAX_PIECE, MAX_WAIT, AnswerPiece, Query, QueryArguments
from shared.bus.reply_subjects import is_answerable
from shared.bus.subjects import READER, Subjects
from shared.tasks import cancel

Document: TypeAlias = Iterator[bytes]
"""A JSON document, piece by piece: making one takes some milliseconds at most. An empty one is only a pause."""
Steps: TypeAlias = Iterator[bytes | asyncio.Future[Any]]
"""A document, between whose pieces something else is to be done: it goes on when that is."""
Answering: TypeAlias = Callable[[Any], Steps]
"""Makes the document that answers a `Query`. Raises `QueryRefused`. A generator is closed when nobody waits for it."""

AT_ONCE = 4
"""Answers that are under way at once."""
WAITING = 32
"""Queries that wait for their turn."""
STEP = 0.002
"""Seconds of work after which a step ends."""
REST = 9
"""How many times as long the process rests after a step: queries get a tenth of the event loop."""
BYTES_PER_SECOND = 16 * 2**20
"""Of all answers together."""


class QueryRefused(Exception):
    """There is no answer; the text says why."""


class Responder:
    """This process as one who answers, for these pools (tokens)."""

    def __init__(
        self,
        bus: Bus,
        subjects: Subjects,
        pools: Sequence[str],
        tier: str,
        id: str,
        answers: Mapping[type[QueryArguments], Answering],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bus = bus
        self._names = subjects
        self._subjects = [subjects.query(pool, tier, whom) for pool in pools for whom in ("", id)]
        self._tier, self._id = tier, id
        self._answers = {kind.KIND: (kind, answer) for kind, answer in answers.items()}
        self._clock = clock
        self._run = secrets.randbits(63)
        self._queue: asyncio.Queue[tuple[str, Query, float]] = asyncio.Queue(WAITING)
        self._step = asyncio.Lock()
        self._started = AsyncExitStack()
        self._log = structlog.get_logger()
        self.answered = 0
        self.refused = 0

    async def start(self) -> None:
        for subject in self._subjects:
            subscription = await self._bus.subscribe(subject, self._receive)
            self._started.push_async_callback(subscription.unsubscribe)
        tasks = [asyncio.create_task(self._work(), name=f"answers {number}") for number in range(AT_ONCE)]
        self._started.push_async_callback(cancel, *tasks)

    async def close(self) -> None:
        await self._started.aclose()

    def _receive(self, message: Msg) -> None:
        if not is_answerable(message, self._names, READER, self._bus.malformed):
            return
        query = self._bus.malformed.decode(Query, message.data, message.subject)
        if query is None:
            return
        if self._queue.full():
            self.refused += 1
            return
        self._queue.put_nowait((message.reply, query, self._clock() + min(query.within, MAX_WAIT)))

    async def _work(self) -> None:
        while True:
            reply, query, until = await self._queue.get()
            try:
                with closing(self._steps(query)) as document:
                    await self._answer(reply, query, until, document)
            except BusError as error:
                self._log.warning("query.answer.failed", kind=query.kind, reason=str(error))
            except Exception:  # noqa: BLE001 - the top of the task: one answer's mistake must not end it
                self._log.exception("query.answer.failed", kind=query.kind)

    async def _answer(self, reply: str, query: Query, until: float, document: Steps) -> None:
        number = size = 0
        more = True
        content, error = bytearray(), ""
        largest = min(MAX_PIECE, self._bus.max_payload // 2)
        while more:
            waiting: asyncio.Future[Any] | None = None
            async with self._step:
                if self._clock() >= until:
                    self.refused += 1
                    return  # nobody waits any more
                began = self._clock()
                try:
                    more, waiting = self._gather(document, content, largest, began)
                    if size + len(content) > MAX_ANSWER:
                        raise QueryRefused(f"the answer has more than {MAX_ANSWER} bytes")
                except QueryRefused as reason:
                    more, error = False, str(reason)
                except Exception as failure:  # noqa: BLE001 - one answer's mistake costs only that answer
                    self._log.exception("query.failed", kind=query.kind)
                    more, error = False, f"{type(failure).__name__}: {failure}"
                published = 0
                while len(content) >= largest or not more:
                    piece = bytes(content[:largest])
                    del content[:largest]
                    last = not more and not content
                    await self._bus.publish(reply, encode(self._piece(number, piece, last, error)))
                    number, published = number + 1, published + len(piece)
                    if last:
                        break
                size += published
                await asyncio.sleep(max(REST * (self._clock() - began), published / BYTES_PER_SECOND))
            if waiting is not None and not await self._is_done(waiting, until):
                self.refused += 1
                return
        self.answered += 1

    async def _is_done(self, waiting: asyncio.Future[Any], until: float) -> bool:
        """Whether what a document waits for is done in time. Otherwise it is cancelled."""
        await asyncio.wait((waiting,), timeout=max(0.0, until - self._clock()))
        if not waiting.done():
            waiting.cancel()
            return False
        if not waiting.cancelled():
            waiting.exception()  # the document may never ask for the result; that is no mistake
        return True

    def _piece(self, number: int, content: bytes, last: bool, error: str) -> AnswerPiece:
        return AnswerPiece(
            sender=self._id,
            tier=self._tier,
            run=self._run,
            number=number,
            more=not last,
            content=content,
            error=error[:MAX_ERROR] if last else "",
        )

    def _steps(self, query: Query) -> Generator[bytes | asyncio.Future[Any], None, None]:
        """The document, which is begun with the first step. Raises QueryRefused for a query that this tier doesn't
        answer, or can't read."""
        known = self._answers.get(query.kind)
        if known is None:
            kinds = ", ".join(sorted(self._answers))
            raise QueryRefused(f"unknown query {query.kind!r}: this {self._tier} answers {kinds}")
        kind, answer = known
        try:
            arguments = msgspec.msgpack.decode(query.arguments, type=kind)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise QueryRefused(f"{query.kind}: {error}") from error
        yield from answer(arguments)

    def _gather(
        self, document: Steps, content: bytearray, largest: int, began: float
    ) -> tuple[bool, asyncio.Future[Any] | None]:
        """One step: (whether there is more of the document, what it waits for)."""
        for part in document:
            if isinstance(part, asyncio.Future):
                return True, part
            content += part
            if not part or len(content) >= largest or self._clock() - began >= STEP:
                return True, None
        return False, None

    def __repr__(self) -> str:
        return f"<Responder {self._tier} {self._id!r}: {self.answered} answered, {self.refused} refused>"
