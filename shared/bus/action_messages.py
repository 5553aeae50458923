"""The messages of actions: the request to a watcher, and its result."""

from typing import Annotated

from msgspec import Meta, Struct

from shared.bus.query_messages import MAX_ERROR, Text
from shared.bus.subjects import MAX_ID

MAX_BY = 256
"""Characters that say who wants an action."""


class Drain(Struct, frozen=True, kw_only=True, tag="drain/1"):
    """Take an endpoint of the subject's pool out of service, or back."""

    endpoint: Text
    """Its id."""
    drain: bool
    by: Annotated[str, Meta(max_length=MAX_BY)] = ""
    """Who wants it, for the log."""


class ActionResult(Struct, frozen=True, kw_only=True, tag="action-result/1"):
    """The result of an action."""

    sender: Annotated[str, Meta(max_length=MAX_ID)]
    """The watcher's id."""
    error: Annotated[str, Meta(max_length=MAX_ERROR)] = ""
    """Why nothing has changed; empty if the source says what it should."""
