"""`passthrough-parser`: takes every body as it is; no model, no prompt, nothing to refuse."""

from services.picker.parsers.parser import Parser
from services.picker.request import Content, Headers

_NOTHING = Content()


class PassthroughParser(Parser):
    """Accepts requests whose API no other parser reads; scorers that need a prompt or a model know nothing of them."""

    TYPE = "passthrough-parser"

    def parse(self, path: str, headers: Headers, body: bytes) -> Content:
        return _NOTHING
