"""Which model a request gets: the target of its rewrite, or the refusal of a model that the pool doesn't serve."""

import re

from services.picker.metadata import REWRITE_HEADERS
from services.picker.parsers.parser import bare_path
from services.picker.request import Refusal, Request, unknown_model
from services.picker.state.rewrites import Rewrites

_UNNAMED_PATHS = ("/v1/models", "/health")
"""Ends of the paths that clients of a closed pool may GET without a model."""
_METRICS = re.compile("".join(f"(?:{letter}|%{ord(letter):02x})" for letter in "/metrics"), re.IGNORECASE)
"""Where servers mount their metrics, which also answer requests for every path below it, by any method; a server may
read a letter that is written as %6d."""


def target_model(request: Request, rewrites: Rewrites) -> tuple[str, str]:
    """(target model, name of the resource that rewrote it)."""
    content = request.content
    model = content.model
    if content.model_fixed or not (model or content.takes_model):
        return model, ""
    found = rewrites.target(model, request.id)
    if found is not None:
        rewrite, target = found
        return target, rewrite
    return request.headers.first_of(REWRITE_HEADERS) or model, ""


def refusal_of_model(
    request: Request, model: str, rewrite: str, rewrites: Rewrites, *, named_only: bool
) -> Refusal | None:
    """Refuses a request without a model where it needs one, and a request for a model that the pool doesn't name,
    if the pool serves only named models. `model` and `rewrite` are those of `target_model`.

    Clients send the rewrite header, so its model has to be named, too. A body that hasn't been read could name any
    model and is refused. A body that no model reads needs no model. A request without a body could do anything else,
    such as loading an adapter: only the paths that show models and health pass. A path below a server's metrics shows
    them, whatever API it ends like.
    """
    content = request.content
    if content.takes_model and not model:
        return _NO_MODEL
    if not (rewrites.closed or named_only):
        return None
    if _METRICS.search(bare_path(request.path)) and not rewrites.names(""):
        return _NO_METRICS
    for adapter in content.adapters:
        if not rewrites.names(adapter):
            return _model_not_found(adapter)
    if rewrites.names(content.model):  # none at all only by a rule for every model
        return None if rewrite or rewrites.names(model) else _model_not_found(model)
    if content.model:
        return _model_not_found(content.model)
    if content.takes_model:
        return _NO_MODEL
    if content.unread:
        return None
    if request.body_size > 0 or request.body_withheld:
        return _UNSEEN
    return None if _needs_no_model(request) else _NO_MODEL_API


def _needs_no_model(request: Request) -> bool:
    """Whether a request without a body only asks for the models, or for a server's health. The whole path counts: what
    is mounted at `/metrics` answers `/metrics/health`, too."""
    return request.headers.get(":method") in ("GET", "HEAD") and bare_path(request.path) in _UNNAMED_PATHS


def _model_not_found(model: str) -> Refusal:
    return unknown_model(model, "not served by this pool: no InferenceModel names it")


_NO_MODEL = Refusal(status=400, message="model: model not found in request body; name the model")
_UNSEEN = Refusal(
    status=400,
    message="model: this pool serves only named models, and the picker can't read the model from this request; "
    "use an API that the picker reads, and name the model",
)
_NO_MODEL_API = Refusal(
    status=404,
    message="this pool serves only named models, and this request names none; without a body, only "
    f"GET {' and '.join(_UNNAMED_PATHS)} are answered",
)
_NO_METRICS = Refusal(status=404, message="this pool serves only named models, and shows no metrics of its servers")
