"""What the bodies of all JSON APIs have in common, and how one becomes the request's content.

A missing model isn't an error here: a rewrite may supply it, which is for the decision to know.
"""

from typing import ClassVar

from msgspec import Raw, Struct

from services.picker.requests.json_values import NOTHING, given, shown, text_of
from services.picker.requests.prompts import Prompt
from services.picker.requests.request import Content, Unparsable

UNREAD = Prompt(tokens=0)
"""The prompt of a request that no model reads."""
_TRUE = Raw(b"true")


class JsonBody(Struct):
    """Fields of every API, kept as they were sent. An API adds its own, and says what they come to."""

    API: ClassVar[str]
    """Its name in `Content`."""
    NEEDS_MODEL: ClassVar[bool] = True

    model: Raw = NOTHING
    stream: Raw = NOTHING
    cache_salt: Raw = NOTHING

    def prompt_of(self) -> Prompt:
        """What the model will read. Raises `Unparsable` when there is nothing to read."""
        raise NotImplementedError

    def output_limit(self) -> int | None:
        """The most tokens that the client takes."""
        return None

    def sequences(self) -> int | None:
        """How many answers the client asks for; None when it doesn't say."""
        return None

    def content(self) -> Content:
        """What the body says. Raises `Unparsable` with the field that is wrong."""
        model = self._model()
        prompt = self.prompt_of()
        return Content(
            api=self.API,
            model=model,
            takes_model=self.NEEDS_MODEL or bool(model),
            stream=self.stream == _TRUE,
            prompt=prompt.text,
            prompt_tokens=prompt.tokens,
            parallel=(self.sequences() or 1) * prompt.count,
            cache_salt=text_of(self.cache_salt) or "",
            output_limit=self.output_limit(),
        )

    def _model(self) -> str:
        name = text_of(self.model)
        if name is None and given(self.model):
            raise Unparsable(f"model: no name of a model: {shown(self.model)}; the name of the model is needed")
        return name or ""
