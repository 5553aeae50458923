"""What a process knows, as a document: sorted, and without ages, so that processes that know the same give the same
text. It is `/debug/view`, and the answer to `ViewQuery`."""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, ConfigDict

from shared.bus.query_messages import ViewQuery
from shared.bus.replica import Replica
from shared.bus.responder import Document
from shared.model import Endpoint
from shared.service.admin import REFUSED, as_json_pieces, encoded
from shared.service.pages import json_sections
from shared.service.status import hexadecimal

SCHEMA = 1


class View(BaseModel):
    """The members differ by tier, and for a single endpoint."""

    model_config = ConfigDict(extra="allow")


def view_document(tier: str, pool: str, replica: Replica, lists: Mapping[str, Iterable[object]]) -> Document:
    """Everything: the facts, and the lists of a tier."""
    extent, _ = replica.extent()
    head = {
        "schema": SCHEMA,
        "tier": tier,
        "pool": pool,
        "epoch": replica.epoch,
        "digest": hexadecimal(extent.digest),
    }
    return json_sections(head, {"facts": facts(replica), **lists}, encoded)


def facts(replica: Replica) -> Iterator[dict[str, Any]]:
    """Each fact with its digest, by key."""
    entries = dict(replica.entries())  # it may change before all of it is written
    for key in sorted(entries):
        entry = entries[key]
        fault = {"fault": entry.fault} if entry.fact is None else {}
        yield {"key": key, "digest": hexadecimal(entry.digest), "fact": entry.fact, **fault}


NAMED = 5
"""Endpoints that the answer to an unknown name has."""


def endpoint_named(replica: Replica, name: str) -> Endpoint | None:
    """The endpoint with this id, or name, or `namespace/name`; None if there is none, or names are ambiguous."""
    endpoints = [fact for fact in replica.facts().values() if isinstance(fact, Endpoint)]
    for matches in (
        [endpoint for endpoint in endpoints if endpoint.id == name],
        [endpoint for endpoint in endpoints if name in (endpoint.name, f"{endpoint.namespace}/{endpoint.name}")],
        [endpoint for endpoint in endpoints if name == endpoint.authority or endpoint.id.endswith(f"/{name}")],
    ):
        if len(matches) == 1:
            return matches[0]
    return None


def one_endpoint(replica: Replica, name: str, about: Callable[[Endpoint], Mapping[str, Any]]) -> Document:
    """What is known of one endpoint."""
    endpoint = endpoint_named(replica, name)
    if endpoint is None:
        ids = sorted(fact.id for fact in replica.facts().values() if isinstance(fact, Endpoint))
        yield encoded({"known": False, "endpoints": len(ids), "some": ids[:NAMED]})
    else:
        yield encoded({"known": True, "fact": endpoint, **about(endpoint)})


def add_view(router: APIRouter, respond: Callable[[str], Awaitable[Response]]) -> None:
    """Add `/debug/view`; `respond` gets the endpoint that is asked for, or nothing."""

    @router.get(
        "/debug/view",
        summary="What the process knows, sorted and without ages: equal knowledge gives equal text.",
        response_model=View,
    )
    async def view(endpoint: Annotated[str, Query(max_length=4096)] = "") -> Response:
        return await respond(endpoint)


def view_routes(document: Callable[[ViewQuery], Document]) -> APIRouter:
    """`/debug/view` of a process."""

    async def respond(endpoint: str) -> Response:
        return as_json_pieces(document(ViewQuery(endpoint=endpoint)))

    router = APIRouter(responses=REFUSED)
    add_view(router, respond)
    return router
