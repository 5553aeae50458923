"""What people may change with a console that has `--allow-actions`. The guard has seen their token, and that no other
site sent the request."""

from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, HTTPException, Request, Response
from pydantic import BaseModel

from services.console.bodies import described, json_body
from services.console.schemas import DrainRequest
from shared.bus.action_messages import MAX_BY
from shared.bus.actions import drain
from shared.bus.connection import Bus
from shared.bus.errors import BusError, Malformed, NoResponders
from shared.bus.subjects import Subjects
from shared.service.admin import REFUSED, as_json

log = structlog.get_logger(__name__)


class Drained(BaseModel):
    """The source of the endpoints has the change. Pickers follow when the watcher has read it."""

    endpoint: str
    draining: bool


def action_routes(bus: Bus, subjects: Subjects, pool: str, id: str) -> APIRouter:
    """The actions of the console `id` on this pool (its token)."""
    router = APIRouter(prefix="/api", responses=REFUSED)

    @router.post(
        "/pool/drain",
        summary="Let an endpoint finish its requests and get no new ones, or end that.",
        response_model=Drained,
        openapi_extra=described(DrainRequest),
    )
    async def drain_endpoint(
        asked: Annotated[DrainRequest, Depends(json_body(DrainRequest))], request: Request
    ) -> Response:
        who = f"{request.client.host if request.client else 'unknown'} at console {id}"[:MAX_BY]
        try:
            done = await drain(bus, subjects, pool, asked.endpoint, drain=asked.drain, by=who)
            status, problem = 409, done.error
        except NoResponders:
            status, problem = 503, "no watcher accepts actions; start the watchers with --allow-actions"
        except (BusError, Malformed) as error:
            status, problem = 503, str(error)
        outcome = {"refused": problem} if problem else {}
        log.info("action.drain" if asked.drain else "action.undrain", endpoint=asked.endpoint, by=who, **outcome)
        if problem:
            raise HTTPException(status, problem)
        return as_json({"endpoint": asked.endpoint, "draining": asked.drain})

    return router
