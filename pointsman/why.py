"""`pointsman why ID`: why a request went where it did, in a sentence or two, whichever picker decided.
`pointsman why --endpoint NAME`: what is wrong with an endpoint, as all processes report it."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from pointsman.command import Format, print_json, usage_errors
from pointsman.endpoint_report import sentences
from pointsman.output import print_lines
from pointsman.query_command import FAILED, QueryClient, QuerySettings, connected, lines_of, run_command
from shared.bus.errors import BusError, Malformed
from shared.bus.query_client import Answer, query_members
from shared.bus.query_messages import DecisionQuery, ViewQuery
from shared.config.problems import Invalid, Problem
from shared.printable import printable
from shared.service.settings import parse
from shared.service.survey import TIERS

QUIET = 0.3
"""Seconds without a further answer after which the answers so far are used."""


class WhySettings(QuerySettings, frozen=True, kw_only=True):
    """Says why a request went where it did, or what is wrong with an endpoint."""

    request: Annotated[
        tuple[str, ...], Meta(description="request ids (`x-request-id`)", extra={"argument": "ID…"})
    ] = ()
    endpoint: Annotated[str, Meta(description="the id or name of an endpoint, instead of a request id")] = ""
    format: Format = "text"


def main(argv: Sequence[str]) -> int:
    """`pointsman why`: 0 if there is an answer, 1 if nobody knows the request or endpoint, 2 for wrong options."""
    with usage_errors():
        settings = parse(WhySettings, argv, os.environ, "pointsman why")
        if bool(settings.request) is bool(settings.endpoint):
            raise Invalid([Problem("ID", "a request id or --endpoint is needed, and not both")])
    if settings.endpoint:
        return run_command(_endpoint(settings))
    return run_command(show_decisions(settings, "why", settings.request, because, settings.format))


async def show_decisions(
    settings: QuerySettings,
    command: str,
    ids: Sequence[str],
    lines: Callable[[str, dict[str, Any]], Sequence[str]],
    format: Format,
    picker: str = "",
) -> int:
    """Print the decisions on requests that pickers, or the named one, remember. `lines` formats a decision. Returns 0
    if there is a decision on each request."""
    found: dict[str, list[dict[str, Any]]] = {}
    async with connected(settings, command) as client:
        for id in ids:
            answers = await _remembering(client, id, picker)
            found[id] = decisions(answers)
            complain(answers, _Decisions)
    if format == "json":
        print_json(found)
    for id, made in found.items():
        if not made:
            print(f"{id}: no picker remembers a decision on it", file=sys.stderr)
        elif format == "text":
            _print_decisions(id, made, lines)
    return 0 if all(found.values()) else FAILED


def _print_decisions(
    id: str, made: Sequence[dict[str, Any]], lines: Callable[[str, dict[str, Any]], Sequence[str]]
) -> None:
    for decision in made:
        try:
            print_lines(lines_of(f"picker {decision['picker_id']}", partial(lines, id, decision)))
        except Malformed as error:
            print_lines([str(error)], error=True)


async def _remembering(client: QueryClient, id: str, picker: str) -> list[Answer]:
    """The answers of the pickers that remember a request; of all of them if none does. It doesn't wait for further
    answers once there is one."""
    answers: list[Answer] = []
    for quiet in (QUIET, None):
        query = DecisionQuery(request_id=id)
        answers = await query_members(
            client.bus, client.subjects, client.pool, "picker", query, timeout=client.timeout, quiet=quiet
        )
        answers = [answer for answer in answers if not picker or answer.id == picker]
        if decisions(answers):
            break
    return answers


class _Reasons(Struct):
    """What is shown of a decision."""

    at: str
    why: list[str]


class _Decisions(Struct):
    decisions: list[dict[str, Any]]
    """Each can be read as `_Reasons`."""

    def __post_init__(self) -> None:
        msgspec.convert(self.decisions, list[_Reasons])


def decisions(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """The decisions of all pickers whose answers can be read, the newest first, each with the id of its picker."""
    found: list[dict[str, Any]] = []
    for answer in answers:
        with suppress(BusError):
            found += [{**decision, "picker_id": answer.id} for decision in answer.read(_Decisions).decisions]
    return sorted(found, key=lambda decision: str(decision["at"]), reverse=True)


def because(id: str, decision: dict[str, Any]) -> list[str]:
    """The reasons of a decision: the first sentence with the request, then the others."""
    first, *others = decision["why"] or ["no reason is known"]
    where = f"{id} at {decision['at']} by picker {decision['picker_id']}"
    return [f"{where}: {first}", *(f"  {reason}" for reason in others)]


async def _endpoint(settings: WhySettings) -> int:
    async with connected(settings, "why") as client:
        views = dict(zip(TIERS, await asyncio.gather(*(_views(client, tier, settings) for tier in TIERS)), strict=True))
    if settings.format == "json":
        print_json(views)
    known = any(view.get("known") for found in views.values() for view in found)
    if not known:
        print(unknown_endpoint(settings.endpoint, views), file=sys.stderr)
        return FAILED
    if settings.format == "json":
        return 0
    shown, problems = showable(views)
    for problem in problems:
        print_lines([problem], error=True)
    if not (lines := sentences(shown)):
        return FAILED
    print_lines(lines)
    return 0


def showable(views: Mapping[str, list[dict[str, Any]]]) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
    """What members know without the answers that can't be shown, and whose these are."""
    shown: dict[str, list[dict[str, Any]]] = {tier: [] for tier in views}
    problems: list[str] = []
    for tier, view in ((tier, view) for tier, found in views.items() for view in found):
        try:
            lines_of(f"{tier} {view['member']}", partial(sentences, {tier: [view]}))
        except Malformed as error:
            problems.append(str(error))
        else:
            shown[tier].append(view)
    return shown, problems


class _Unknown(Struct):
    """The answer to an unknown name."""

    endpoints: int = 0
    some: list[str] = []


def unknown_endpoint(name: str, views: Mapping[str, list[dict[str, Any]]]) -> str:
    """What is said of a name that nobody knows, given the answers of all tiers."""
    return printable(f"no member of the pool knows an endpoint {name!r}{_some(views)}")


def _some(views: Mapping[str, list[dict[str, Any]]]) -> str:
    """Some of the endpoints that there are, as the first answer names them; nothing without one."""
    for view in (view for found in views.values() for view in found):
        with suppress(msgspec.ValidationError):
            known = msgspec.convert(view, _Unknown)
            if known.some:
                more = known.endpoints - len(known.some)
                return f"; it has {', '.join(known.some)}{f' and {more} more' if more > 0 else ''}"
    return ""


async def _views(client: QueryClient, tier: str, settings: WhySettings) -> list[dict[str, Any]]:
    """What the members of a tier know of the endpoint, each with its id."""
    query = ViewQuery(endpoint=settings.endpoint)
    answers = await query_members(client.bus, client.subjects, client.pool, tier, query, timeout=client.timeout)
    found: list[dict[str, Any]] = []
    for answer in answers:
        with suppress(BusError):
            found.append({**answer.read(dict), "member": answer.id})
    complain(answers, dict)
    return found


def complain(answers: Sequence[Answer], kind: type) -> None:
    """Say which aren't there, or can't be read as `kind`."""
    for answer in answers:
        try:
            answer.read(kind)
        except BusError as error:
            print_lines([str(error)], error=True)
