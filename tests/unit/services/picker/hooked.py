"""A picker of two endpoints for tests of plugins that act before and after a pick, and the messages about a request."""

from typing import Any

import numpy as np

from services.picker.extproc.messages import BodyMode
from services.picker.pipeline import build
from services.picker.request_stream import RequestStream
from services.picker.responses.usage import Usage
from shared.attributes import WAITING_QUEUE_SIZE
from shared.config import load
from shared.plugin import Plugin, Registry
from tests.unit.services.picker.extproc.proxy import LEAN, Answer, body, headers
from tests.unit.services.picker.handler import REGISTRY as INSTALLED
from tests.unit.services.picker.handler import PickerUnderTest
from tests.unit.services.picker.world import pool, report

Modes = tuple[BodyMode, BodyMode]
BUFFERED = (BodyMode.BUFFERED, BodyMode.BUFFERED)
STREAMED = (BodyMode.BUFFERED, BodyMode.STREAMED)
PATH = {":method": "POST", ":path": "/v1/completions", "x-request-id": "mine"}
EVENTS = "text/event-stream"
JSON = b'{"model":"m","usage":{"prompt_tokens":3,"completion_tokens":2}}'
EVENT = b'data: {"model":"m","choices":[]}\n\n'
LAST_EVENT = b'data: {"model":"m","usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
USAGE = Usage(3, 2)
"""Of `JSON` and `LAST_EVENT`."""


def boom(*_: Any) -> Any:
    raise KeyError("lists")


class World(PickerUnderTest):
    """A picker of two endpoints, of which a1 has the shorter queue, that observes no responses by itself."""

    def __init__(self, *plugins: type[Plugin]) -> None:
        view = pool("a1", "a2")
        report(view, {WAITING_QUEUE_SIZE: [0, 1]})
        super().__init__(view, limit=2**22)
        self.handler.observe = lambda: False
        self.counted: list[str] = []
        self.configure(*plugins)

    def configure(self, *plugins: type[Plugin]) -> None:
        """A configuration with these plugins and the scorers."""
        types = "".join(f"- type: {kind.TYPE}\n" for kind in plugins)
        document = f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n{types}- type: queue-scorer\n"
        self.handler.pipeline = build(
            load(document, Registry([*INSTALLED, *plugins])),
            np.random.default_rng(1),
            lambda: 0.0,
            failed=lambda plugin, *_: self.counted.append(plugin),
        )

    def ask(self, modes: Modes = LEAN, size: int = 100, **more: str) -> tuple[RequestStream, list[Answer]]:
        """A request up to the end of its body, and what is answered by then."""
        text = b'{"model": "m", "prompt": "%s"}' % (b"x" * size)
        named = {name.replace("_", "-"): value for name, value in more.items()}
        return self.begin(headers({**PATH, **named}, modes=modes), body(text, end=True))

    @property
    def failures(self) -> list[tuple[str, str]]:
        """Plugin and role, as the decision says."""
        (decision,) = self.ring.of_request("mine", 10)
        return [(failure["plugin"], failure["role"]) for failure in decision.summary().get("plugin_failures", ())]


def answered(kind: str = "application/json", **more: str) -> Any:
    """Response headers of the first choice."""
    message = headers({":status": "200", "content-type": kind, **more}, phase="response_headers")
    message.attributes["envoy.filters.http.ext_proc"].update({"upstream.address": "10.0.0.1:8000"})
    return message
