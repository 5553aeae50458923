"""Pages about the port: the lists at `/` and `/debug`, the OpenAPI document, and a page that shows it.

The page is our own file: FastAPI's loads scripts from another origin, which a cluster may not reach. Making the OpenAPI
document takes some 90 ms of CPU, once: FastAPI runs functions that aren't coroutines in a thread.
"""

from importlib.resources import files
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse

POLICY = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


def add_index(app: FastAPI) -> None:
    """Add the pages to an application that has all its other routes or gets them later."""
    add_docs(app)
    router = APIRouter()

    @router.get("/", summary="This list.")
    def index() -> PlainTextResponse:
        return _paths(app, "/")

    @router.get("/debug", summary="The paths below `/debug`.")
    def debug() -> PlainTextResponse:
        return _paths(app, "/debug/")

    app.include_router(router)


def add_docs(app: FastAPI) -> None:
    """Add the OpenAPI document, and the page that shows it."""
    router = APIRouter()

    @router.get("/docs", summary="The paths with their parameters and responses, as a web page.")
    async def docs() -> HTMLResponse:
        page = files(__package__).joinpath("docs.html").read_text(encoding="utf-8")
        return HTMLResponse(page, headers={"content-security-policy": POLICY})

    @router.get("/openapi.json", summary="The same as an OpenAPI document.")
    def openapi() -> dict[str, Any]:
        return app.openapi()

    app.include_router(router)


def _paths(app: FastAPI, prefix: str) -> PlainTextResponse:
    """A line for each path that begins so: the path and its summary."""
    lines = [
        (path.replace("_", " "), operations["get"]["summary"])
        for path, operations in app.openapi()["paths"].items()
        if path.startswith(prefix) and "get" in operations
    ]
    width = max(len(path) for path, _ in lines) + 2
    heading = f"{app.title}, version {app.version}"
    return PlainTextResponse("\n".join([heading, "", *(f"{path:{width}}{text}" for path, text in lines), ""]))
