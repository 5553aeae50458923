"""The pages `/` and `/debug`: what else there is on the port. Paths come from the routes, and what each says from the
first line of its handler's docstring."""

import inspect
import re
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

_PARAMETER = re.compile(r"{(\w+)(:\w+)?}")


def with_index(routes: Sequence[Route], title: str) -> list[Route]:
    """The routes, and before them pages that list them: all, and those below `/debug`."""

    async def index(_: Request) -> Response:
        """This list."""
        return _page(title, served)

    async def debug(_: Request) -> Response:
        """What is below `/debug`."""
        return _page(title, [route for route in served if route.path.startswith("/debug/")])

    served = [Route("/", index), Route("/debug", debug), *routes]
    return served


def _page(title: str, routes: Sequence[Route]) -> Response:
    """A line for each route: its path and what it says."""
    lines = [(_spelled(route.path), _meaning(route)) for route in routes]
    width = max(len(path) for path, _ in lines) + 2
    return PlainTextResponse("\n".join([title, "", *(f"{path:{width}}{text}" for path, text in lines), ""]))


def _spelled(path: str) -> str:
    """`/debug/decisions/{request id}` for `/debug/decisions/{request_id:path}`."""
    return _PARAMETER.sub(lambda found: f"{{{found[1].replace('_', ' ')}}}", path)


def _meaning(route: Route) -> str:
    return (inspect.getdoc(route.endpoint) or "").partition("\n")[0]
