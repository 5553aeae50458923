"""The collector's admin routes."""

from fastapi import APIRouter, Response
from pydantic import BaseModel, ConfigDict

from services.collector.scraper import Scraper
from shared.service.admin import as_json_pieces, encoded
from shared.service.pages import json_items


class AttributeValue(BaseModel):
    value: object
    age: float


class Specification(BaseModel):
    specification: str
    attribute: str
    outcome: str


class ScrapedSource(BaseModel):
    """Ages are seconds. A source may add members of its own."""

    model_config = ConfigDict(extra="allow")
    source: str
    url: str
    up: bool
    age: float | None
    scrapes: int
    pages: int
    page_bytes: int
    duration: float
    error: str | None
    last_error: str | None
    last_error_age: float | None
    failures: dict[str, int]
    specifications: list[Specification]


class ScrapedEndpoint(BaseModel):
    """`up` is null for an endpoint without sources."""

    id: str
    address: str
    up: bool | None
    attributes: dict[str, AttributeValue]
    sources: list[ScrapedSource]


def endpoint_routes(scraper: Scraper) -> APIRouter:
    """The endpoints that a collector scrapes."""
    router = APIRouter()

    @router.get(
        "/debug/endpoints",
        summary="The endpoints of this collector, with their attributes and the results of their scrapes.",
        response_model=list[ScrapedEndpoint],
    )
    async def endpoints() -> Response:
        return as_json_pieces(json_items(scraper.describe(), encoded))

    return router
