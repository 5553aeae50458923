"""Bodies of requests: JSON that is read as a type. Fields that the type doesn't have are skipped: no objects are made
of them."""

from collections.abc import Awaitable, Callable
from email.message import Message
from typing import Any, Protocol, TypeVar

import msgspec
from fastapi import HTTPException, Request

B = TypeVar("B")
C = TypeVar("C", covariant=True)


class Sent(Protocol[C]):
    """A body that is decoded in two steps, because the first can see what would take long in the second."""

    def whole(self) -> C:
        """Raises msgspec.DecodeError."""
        ...


def json_body(kind: type[B], sent: type[Sent[B]] | None = None) -> Callable[[Request], Awaitable[B]]:
    """A dependency of a route: the body as `kind`."""

    async def read(request: Request) -> B:
        declared = Message()
        declared["content-type"] = request.headers.get("content-type", "")
        if declared.get_content_type() != "application/json":  # a page of another site can't send it unasked
            raise HTTPException(415, "the body's content-type isn't application/json")
        try:
            body = await request.body()
            return (
                msgspec.json.decode(body, type=kind) if sent is None else msgspec.json.decode(body, type=sent).whole()
            )
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise HTTPException(400, f"body: {error}") from error

    return read


def described(kind: type) -> dict[str, Any]:
    """The body of a route for `/openapi.json`."""
    _, components = msgspec.json.schema_components([kind])
    content = {"application/json": {"schema": components[kind.__name__]}}
    return {"requestBody": {"required": True, "content": content}}
