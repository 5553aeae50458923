"""`pointsman explain`: asks a running picker where a request would go, and why. Nothing is sent or charged.
`pointsman explain ID`: shows an earlier decision the same way, whichever picker made it."""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from pointsman.command import Format, print_json, read_input, usage_errors
from pointsman.output import print_lines
from pointsman.query_command import FAILED, QueryClient, QuerySettings, connected, lines_of, run_command
from pointsman.table import DASH, text_table
from pointsman.why import complain, show_decisions
from shared.bus.errors import BusError
from shared.bus.query_client import query_member, query_members
from shared.bus.query_messages import ExplainQuery, StatusQuery
from shared.config.problems import Invalid, Problem
from shared.service.settings import parse
from shared.service.status import MemberStatus

MAX_BODY = 900_000
"""Bytes of a body: a question is one message, and nats-server's have at most 1 MiB by default."""
SHOWN = 20
"""Endpoints that the table shows, the best first."""


class ExplainSettings(QuerySettings, frozen=True, kw_only=True):
    """Shows where a running picker would send a request now, and why: candidates, what each filter leaves, each
    scorer's value and weight, the ages of its inputs, and what would change the outcome. The request isn't sent.
    With request ids, shows the earlier decisions on these requests instead."""

    request: Annotated[
        tuple[str, ...], Meta(description="ids of earlier requests (`x-request-id`)", extra={"argument": "ID…"})
    ] = ()

    body: Annotated[str, Meta(description="a file with the request's body, - for standard input")] = ""
    model: Annotated[str, Meta(description="without --body: the model of a chat request")] = ""
    prompt: Annotated[str, Meta(description="without --body: the prompt of a chat request")] = ""
    header: Annotated[tuple[str, ...], Meta(description="a header of the request, NAME=VALUE; may be repeated")] = ()
    path: Annotated[str, Meta(min_length=1, description="the request's path")] = "/v1/chat/completions"
    picker: Annotated[str, Meta(description="id of the picker that decides; default: the first that is ready")] = ""
    format: Format = "text"


def main(argv: Sequence[str]) -> int:
    """`pointsman explain`: 0 if the request would be routed, 1 if it would be refused or nobody answers, 2 for wrong
    options."""
    with usage_errors():
        settings = parse(ExplainSettings, argv, os.environ, "pointsman explain")
        if settings.request and (settings.body or settings.model or settings.prompt or settings.header):
            raise Invalid([Problem("ID", "a request id and a request to decide on can't be given together")])
        query = ExplainQuery(path=settings.path, headers=read_headers(settings.header), body=_body(settings))
    if settings.request:
        return run_command(
            show_decisions(settings, "explain", settings.request, _earlier, settings.format, settings.picker)
        )
    return run_command(_explain(settings, query))


def read_headers(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Headers given as `name=value`. A value's commas have split the list, so what has no name goes on with the last
    value. Raises Invalid."""
    found: list[tuple[str, str]] = []
    for text in texts:
        name, equals, value = text.partition("=")
        if equals and name:
            found.append((name.strip().lower(), value))
        elif found:
            found[-1] = (found[-1][0], f"{found[-1][1]},{text}")
        else:
            raise Invalid([Problem("--header", f"{text!r} is no NAME=VALUE")])
    return found


def _body(settings: ExplainSettings) -> bytes:
    if settings.body and (settings.prompt or settings.model):
        raise Invalid([Problem("--body", "the body has the model and the prompt; leave out --model and --prompt")])
    if not settings.body:
        document = {"model": settings.model, "messages": [{"role": "user", "content": settings.prompt}]}
        return msgspec.json.encode(document)
    return read_input(settings.body, "--body", MAX_BODY)


async def _explain(settings: ExplainSettings, query: ExplainQuery) -> int:
    async with connected(settings, "explain") as client:
        id = settings.picker or await _ready_picker(client)
        if not id:
            print("no picker answers", file=sys.stderr)
            return FAILED
        answer = await query_member(
            client.bus, client.subjects, client.pool, "picker", id, query, timeout=client.timeout
        )
    decision: dict[str, Any] = {**answer.read(dict), "picker_id": id}
    if settings.format == "json":
        print_json(decision)
    else:
        print_lines(lines_of(f"picker {id}", lambda: text(decision)))
    return FAILED if "refused" in decision else 0


def _earlier(id: str, decision: dict[str, Any]) -> list[str]:
    return [f"{id} at {decision['at']}", *text(decision), ""]


async def _ready_picker(client: QueryClient) -> str:
    """The first that is ready, else the first; empty if none has an answer that can be read."""
    for first in (True, False):
        answers = await query_members(
            client.bus, client.subjects, client.pool, "picker", StatusQuery(), timeout=client.timeout, first=first
        )
        pickers: list[MemberStatus] = []
        for answer in answers:
            with suppress(BusError):
                pickers.append(answer.read(MemberStatus))
        if pickers or not answers:
            break
    complain(answers, MemberStatus)
    return next((picker.id for picker in pickers if picker.ready), pickers[0].id if pickers else "")


def text(decision: dict[str, Any]) -> list[str]:
    """A decision in full, for people."""
    lines = [f"picker {decision['picker_id']}, configuration {decision['configuration'] or DASH}"]
    model, target = decision["model"], decision["target_model"]
    if model:
        lines.append(f"model {model}" + (f", rewritten to {target}" if target != model else ""))
    if refused := decision.get("refused"):
        lines.append(f"refused with status {refused['status']}: {refused['message']}")
    else:
        lines.append(f"goes to {decision['endpoint']} ({', '.join(decision['destinations'])})")
    lines += ["", *(f"because: {reason}" for reason in decision.get("why", []))]
    if flow := decision.get("flow_control"):
        lines.append(
            f"flow control: saturation {flow['saturation']:.2f}, {flow['ahead']} requests wait before it here and "
            f"{flow['ahead_at_peers']} at other pickers"
        )
    for name, profile in decision["profiles"].items():
        lines += ["", *_profile(name, profile, decision, primary=name == decision["primary_profile"])]
    if changes := decision.get("changes"):
        lines += ["", "what would change it:", *(f"  {change['text']}" for change in changes)]
    lines += [f"left out: {what}" for what in decision.get("left_out", [])]
    return lines


def _profile(name: str, profile: dict[str, Any], decision: dict[str, Any], *, primary: bool) -> Iterator[str]:
    """The filters, and the best endpoints with their scores."""
    yield f"profile {name}{' (decides)' if primary else ''}: {len(decision['candidates'])} candidates"
    for step in profile["filters"]:
        removed = step["removed"]
        gone = f", removed {', '.join(removed[:5])}{' …' if len(removed) > 5 else ''}" if removed else ""
        yield f"  {step['plugin']}: {step['kept']} left{gone}"
    endpoints = profile["endpoints"]
    picked, last = profile["picked"], profile["ranked_last"]
    order = sorted(endpoints, key=lambda id: (id in last, -(endpoints[id]["total"] or 0.0), id))
    order = [*picked[:1], *(id for id in order if id not in picked[:1])][:SHOWN]
    if not order:
        return
    scorers = list(next(iter(endpoints.values()))["scores"])
    header = ["", "endpoint", "total", *(_heading(scorer, endpoints) for scorer in scorers), "oldest input"]
    rows = []
    for id in order:
        scored = endpoints[id]
        place = str(picked.index(id) + 1) if id in picked else " "
        cells = [_cell(scored["scores"][scorer]) for scorer in scorers]
        rows.append([place, id, _figure(scored["total"]), *cells, _oldest(id, decision)])
    yield from text_table(header, rows, "  ")
    if len(endpoints) > len(order):
        yield f"  … and {len(endpoints) - len(order)} more"


def _heading(scorer: str, endpoints: dict[str, Any]) -> str:
    weight = next(iter(endpoints.values()))["scores"][scorer]["weight"]
    return f"{scorer} ·{weight:g}"


def _cell(score: dict[str, Any]) -> str:
    return f"{_figure(score['score'])} → {_figure(score['weighted'])}"


def _figure(value: float | None) -> str:
    return DASH if value is None else f"{value:.3g}"


def _oldest(id: str, decision: dict[str, Any]) -> str:
    """The age of the oldest input; a star where one isn't fresh."""
    inputs = [values[id] for values in decision["inputs"].values() if id in values]
    ages = [value["age"] for value in inputs if value["age"] is not None]
    stale = "" if all(value["fresh"] for value in inputs) else "*"
    return f"{max(ages):.1f}s{stale}" if ages else f"never{stale}" if stale else ""
