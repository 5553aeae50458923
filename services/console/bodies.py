"""Bodies of requests: JSON that is read as a type. What the type doesn't have is skipped: no objects are made of it."""

from collections.abc import Awaitable, Callable
from email.message import Message
from typing import Any, TypeVar

import msgspec
from fastapi import HTTPException, Request

B = TypeVar("B")


def json_body(kind: type[B]) -> Callable[[Request], Awaitable[B]]:
    """A dependency of a route: the body as `kind`."""

    async def read(request: Request) -> B:
        declared = Message()
        declared["content-type"] = request.headers.get("content-type", "")
        if declared.get_content_type() != "application/json":  # a page of another site can't send it unasked
            raise HTTPException(415, "the body's content-type isn't application/json")
        try:
            return msgspec.json.decode(await request.body(), type=kind)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise HTTPException(400, f"body: {error}") from error

    return read


def described(kind: type) -> dict[str, Any]:
    """The body of a route for `/openapi.json`."""
    _, components = msgspec.json.schema_components([kind])
    content = {"application/json": {"schema": components[kind.__name__]}}
    return {"requestBody": {"required": True, "content": content}}
