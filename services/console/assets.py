"""The page: one HTML document, its style sheet and its modules, as they are in the folder `page`.

They are read once, and served under names without folders: a request can't name any other file.
"""

from importlib.resources import files

from fastapi import APIRouter, HTTPException, Request, Response
from msgspec import Struct
from xxhash import xxh3_64_hexdigest

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
INDEX = "index.html"


class Asset(Struct, frozen=True):
    """One file of the page."""

    content: bytes
    media_type: str
    etag: str


def read_assets() -> dict[str, Asset]:
    """The files by name."""
    found = {}
    for entry in files("services.console").joinpath("page").iterdir():
        kind = TYPES.get(entry.name.rpartition(".")[2])
        if kind is not None:
            content = entry.read_bytes()
            found[entry.name] = Asset(content, kind, f'"{xxh3_64_hexdigest(content)}"')
    return found


def page_routes() -> APIRouter:
    """The page at `/`, and what it loads."""
    router = APIRouter(include_in_schema=False)
    assets = read_assets()

    @router.get("/")
    async def index(request: Request) -> Response:
        return _answer(assets[INDEX], request)

    @router.get("/page/{name}")
    async def asset(name: str, request: Request) -> Response:
        if name not in assets:
            raise HTTPException(404, "the page has no such file")
        return _answer(assets[name], request)

    return router


def _answer(asset: Asset, request: Request) -> Response:
    headers = {"etag": asset.etag, "cache-control": "no-cache"}
    if request.headers.get("if-none-match") == asset.etag:
        return Response(status_code=304, headers=headers)
    return Response(asset.content, media_type=asset.media_type, headers=headers)
