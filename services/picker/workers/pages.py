"""The admin pages of a supervisor: the workers' pages, joined.

A worker that doesn't answer in time costs its part of a page, and the page names it.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec
from fastapi import HTTPException, Response
from fastapi.responses import StreamingResponse
from msgspec import Raw, Struct
from prometheus_client import CONTENT_TYPE_LATEST

from services.picker.workers.exposition import Counts, Page, joining, parsing, text
from services.picker.workers.worker import Unanswered, Worker
from shared.service.admin import InTurn, as_json_pieces, encoded
from shared.service.pages import alone, exposition, json_sections, slices
from shared.service.process import Service
from shared.tasks import in_turns
from shared.version import VERSION

TIMEOUT = 1.0
"""Seconds for a worker's answer: a probe waits for two."""
AT_ONCE = 4
"""Large pages that are made and sent at once: until a client has read its page, the answers of all workers stay. Pages
of metrics that are made at once."""
T = TypeVar("T")
_END = object()


class ReadyAnswer(Struct):
    """What is read of `/readyz`."""

    reasons: dict[str, str]
    notes: dict[str, str]
    configurations: list[dict[str, str]]


class StateAnswer(Struct):
    """What is read of `/debug/state`."""

    configurations: list[dict[str, str]]


class DecisionsAnswer(Struct):
    """What is read of `/debug/decisions`, and of the decisions on a request."""

    decisions: list[Raw] = []
    total: int = 0


class At(Struct):
    """When a decision was made: UTC, in ISO 8601."""

    at: str


class Answers(Struct, Generic[T]):
    """What workers answer, by their ids."""

    found: dict[str, T]
    missing: dict[str, str]
    """Why the others gave none."""


class WorkerPages:
    """Makes the pages."""

    def __init__(self, supervisor: Service, workers: Sequence[Worker]) -> None:
        self._supervisor = supervisor
        self._workers = workers
        self._counts = Counts()
        self._large, self._scrapes = asyncio.Semaphore(AT_ONCE), asyncio.Semaphore(AT_ONCE)
        self.missing: Mapping[str, str] = {}
        """Workers whose metrics the last page lacks, by id, with the reason."""

    def ended(self, worker: Worker) -> None:
        """A worker's process has ended: its counts stay."""
        self._counts.ended(worker.id)

    async def readyz(self) -> Mapping[str, Any]:
        """Ready when the supervisor and all workers are. What several workers say alike is said once."""
        readiness = self._supervisor.readiness
        answers = await self._ask("/readyz", ReadyAnswer, statuses=(200, 503))
        missing = {id: f"the worker is {why}" for id, why in answers.missing.items()}
        reasons = (
            readiness.reasons() | missing | _merge_texts({id: answer.reasons for id, answer in answers.found.items()})
        )
        return {
            "ready": not reasons,
            "reasons": reasons,
            "notes": readiness.notes() | _merge_texts({id: answer.notes for id, answer in answers.found.items()}),
            "configurations": _distinct(answers.found.values()),
        }

    async def metrics(self) -> Response:
        return StreamingResponse(self._metrics(), media_type=CONTENT_TYPE_LATEST)

    async def debug_state(self) -> Response:
        """The supervisor's state, and that of each worker by its id: of its process, and under `picker` its own."""
        return InTurn(self._large, self._debug_state)

    async def newest(self, limit: int) -> Response:
        """The newest decisions, whichever worker made them."""
        return InTurn(self._large, partial(self._newest, limit))

    async def of_request(self, request_id: str, limit: int) -> Response:
        """The decisions on a request, whichever workers made them."""
        return InTurn(self._large, partial(self._of_request, request_id, limit))

    async def view(self, endpoint: str = "") -> Response:
        """What each worker knows, by its id."""
        return InTurn(self._large, partial(self._view, endpoint))

    async def _debug_state(self) -> Response:
        answers = await self._ask("/debug/state", Raw)
        read = [msgspec.json.decode(answer, type=StateAnswer) for answer in answers.found.values()]
        about = {"id": self._supervisor.id, "tier": self._supervisor.tier, "version": VERSION}
        workers = {
            worker.id: {
                **worker.about(),
                "picker": answers.found.get(worker.id),
                "missing": answers.missing.get(worker.id),
            }
            for worker in self._workers
        }
        state = {**about, "configurations": _distinct(read), **self._supervisor.state(), "workers": workers}
        return as_json_pieces(slices(encoded(state)))

    async def _newest(self, limit: int) -> Response:
        answers = await self._ask(f"/debug/decisions?limit={limit}", DecisionsAnswer)
        total = sum(answer.total for answer in answers.found.values())
        return _decisions({"total": total, **_named(answers)}, await _newest(answers, limit))

    async def _of_request(self, request_id: str, limit: int) -> Response:
        path = f"/debug/decisions/{quote(request_id, safe='')}?limit={limit}"
        answers = await self._ask(path, DecisionsAnswer, statuses=(200, 404))
        if not (decisions := await _newest(answers, limit)):
            missing = "".join(f"; {id} is {why}" for id, why in answers.missing.items())
            raise HTTPException(404, f"no worker has a decision on a request {request_id!r}{missing}")
        return _decisions(_named(answers), decisions)

    async def _view(self, endpoint: str) -> Response:
        query = f"?endpoint={quote(endpoint, safe='')}" if endpoint else ""
        answers = await self._ask(f"/debug/view{query}", Raw)
        return as_json_pieces(_views(answers))

    async def _metrics(self) -> AsyncIterator[bytes]:
        """The metrics of the workers and of the supervisor together. Only their text stays until the client has read
        it."""
        async with self._scrapes:
            texts = await self._joined()
        for family in texts:
            for piece in slices(family):
                yield piece

    async def _joined(self) -> list[bytes]:
        """The text of each family."""
        runs = {worker.id: worker.restarts for worker in self._workers}
        counts = self._counts.copy()  # a worker may end from now on, and is in its answer
        answers = await self._ask("/metrics", bytes)
        self.missing = answers.missing
        answered: list[str] = []
        pages: list[Page] = []
        page: Page
        for worker in self._workers:
            if (body := answers.found.pop(worker.id, None)) is None:
                continue
            pages.append(page := {})
            answered.append(worker.id)
            await _in_steps(parsing(body, page))
            if worker.restarts == runs[worker.id]:
                self._counts.update(worker.id, page)
        await _in_steps(self._counts.pruning())
        pages += counts.missing(answered)
        own = b"".join([piece async for piece in exposition(self._supervisor.registry)])
        pages.append(page := {})
        await _in_steps(parsing(own, page))
        families: Page = {}
        await _in_steps(joining(pages, families))
        return [await alone(lambda family=family: text(family).encode()) for family in families.values()]  # type: ignore[misc]

    async def _ask(self, path: str, kind: type[T], statuses: Iterable[int] = (200,)) -> Answers[T]:
        """The answers of all workers, asked at once."""

        async def ask(worker: Worker) -> T | Unanswered:
            try:
                status, body = await worker.get(path, TIMEOUT)
            except Unanswered as why:
                return why
            if status not in statuses:
                return Unanswered(f"responding with status {status}")
            return body if kind is bytes else msgspec.json.decode(body, type=kind)  # type: ignore[return-value]

        answers = await asyncio.gather(*(ask(worker) for worker in self._workers))
        by_id = {worker.id: answer for worker, answer in zip(self._workers, answers, strict=True)}
        return Answers(
            {id: answer for id, answer in by_id.items() if not isinstance(answer, Unanswered)},
            {id: str(answer) for id, answer in by_id.items() if isinstance(answer, Unanswered)},
        )

    def __repr__(self) -> str:
        return f"<WorkerPages of {len(self._workers)} workers>"


def _decisions(head: Mapping[str, object], decisions: Iterable[Raw]) -> Response:
    texts = (slices(bytes(decision)) for decision in decisions)
    return as_json_pieces(json_sections(head, {"decisions": texts}, encoded))


async def _in_steps(steps: Iterator[None]) -> None:
    """Do work in steps, each alone."""
    while await alone(lambda: next(steps, _END)) is not _END:
        pass


def _merge_texts(texts_by_worker: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """What workers say, by its name. What only some say has their ids beside its name."""
    who: dict[tuple[str, str], list[str]] = {}
    for id, texts in texts_by_worker.items():
        for named in texts.items():
            who.setdefault(named, []).append(id)
    return {
        name if len(ids) == len(texts_by_worker) else f"{name} ({', '.join(ids)})": text
        for (name, text), ids in who.items()
    }


def _distinct(answers: Iterable[ReadyAnswer | StateAnswer]) -> list[dict[str, str]]:
    """The configurations of all workers, each once."""
    found: list[dict[str, str]] = []
    for answer in answers:
        found += [configured for configured in answer.configurations if configured not in found]
    return found


async def _newest(answers: Answers[DecisionsAnswer], limit: int) -> list[Raw]:
    """The newest `limit` decisions of all workers, the newest first."""
    decisions = [decision for answer in answers.found.values() for decision in answer.decisions]
    dated = [(msgspec.json.decode(decision, type=At).at, decision) async for decision in in_turns(decisions)]
    dated.sort(key=itemgetter(0), reverse=True)
    return [decision for _, decision in dated[:limit]]


def _views(answers: Answers[Raw]) -> Iterator[bytes]:
    """A JSON object with what each worker knows: a worker's view of thousands of endpoints has megabytes."""
    opening = b'{"workers":{'
    for id, answer in answers.found.items():
        yield opening + encoded(id) + b":"
        yield from slices(bytes(answer))
        opening = b","
    yield (b"" if answers.found else opening) + b"}"
    for name, reasons in _named(answers).items():
        yield b"," + encoded(name) + b":" + encoded(reasons)
    yield b"}"


def _named(answers: Answers[Any]) -> dict[str, Mapping[str, str]]:
    """The member that names the workers without an answer, if there are any."""
    return {"missing": answers.missing} if answers.missing else {}
