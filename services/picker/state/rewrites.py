"""Which model a request is really for, and what the model's name says of its priority.

InferenceModelRewrites: a rule that names the model goes before one for every model; among equals the oldest resource's
first rule. An InferenceModel, their predecessor, is a rule that names its model and comes after all of those; its
criticality is the priority of requests that name no objective, and a pool that has any serves no model that none names.
A split between targets is decided by the request's id,
so that a retry of the same request stays with its target.
"""

from collections.abc import Iterable

import xxhash

from services.picker.settings.limits import DEFAULT_VIEW_LIMITS
from shared.model import Criticality, Model, ModelRewrite, RewriteRule, Target

PRIORITIES = {Criticality.CRITICAL: 1, Criticality.STANDARD: 0, Criticality.SHEDDABLE: -1}


class Rewrites:
    """The rules of all rewrites and models of a pool. At most `limit` model names of rules, and InferenceModels, take
    effect; InferenceModels beyond that close the pool all the same."""

    def __init__(
        self,
        rewrites: Iterable[ModelRewrite] = (),
        models: Iterable[Model] = (),
        limit: int = DEFAULT_VIEW_LIMITS.model_names,
    ) -> None:
        self._exact: dict[str, tuple[str, RewriteRule]] = {}
        self._generic: tuple[str, RewriteRule] | None = None
        self._priorities: dict[str, int] = {}
        self.omitted = 0
        """Rules and models without effect, because there are too many."""
        left = limit
        for rewrite in sorted(rewrites, key=lambda rewrite: (rewrite.created, rewrite.name)):
            for rule in rewrite.rules:
                left -= 1 + len(rule.models)
                if left < 0:
                    self.omitted += 1
                    continue
                if not rule.targets:
                    continue
                for model in rule.models:
                    self._exact.setdefault(model, (rewrite.name, rule))
                if not rule.models and self._generic is None:
                    self._generic = (rewrite.name, rule)
        oldest = sorted(models, key=lambda model: (model.created, model.name))
        self.omitted += len(oldest[limit:])
        for resource in oldest[:limit]:
            if resource.model_name not in self._priorities:
                self._priorities[resource.model_name] = PRIORITIES[resource.criticality]
                if resource.targets:
                    self._exact.setdefault(resource.model_name, (resource.name, RewriteRule(targets=resource.targets)))

    def target(self, model: str, request_id: str) -> tuple[str, str] | None:
        """(resource's name, target model) for a model, or None when no rule applies."""
        found = self._exact.get(model, self._generic)
        if found is None:
            return None
        name, rule = found
        return name, split(rule.targets, request_id)

    @property
    def closed(self) -> bool:
        """Whether the pool serves only models that it names: it does where it has an InferenceModel."""
        return bool(self._priorities)

    def names(self, model: str) -> bool:
        """Whether an InferenceModel or a rewrite is for this model."""
        return self.mentions(model) or self._generic is not None

    def mentions(self, model: str) -> bool:
        """Whether an InferenceModel or a rewrite is for this very model, and not only one for every model."""
        return model in self._priorities or model in self._exact

    @property
    def priorities(self) -> set[int]:
        """Those of all InferenceModels."""
        return set(self._priorities.values())

    def priority(self, model: str) -> int:
        """The priority of the client's model: its InferenceModel's criticality, 0 when there is none."""
        return self._priorities.get(model, 0)

    def note(self) -> str | None:
        """What `/readyz` mentions: rules and models without effect; None when there are none."""
        return f"{self.omitted} rules and models have no effect: there are too many" if self.omitted else None

    def __repr__(self) -> str:
        return f"<Rewrites {len(self._exact)} models{', any' if self._generic else ''}>"


def split(targets: tuple[Target, ...], request_id: str) -> str:
    """The target that falls to a request id: by weight, or evenly when no weight is positive."""
    weights = [max(target.weight or 0, 0) for target in targets]
    if not any(weights):
        weights = [1] * len(targets)
    point = xxhash.xxh3_64_intdigest(request_id.encode()) % sum(weights)
    for target, weight in zip(targets, weights, strict=True):
        if point < weight:
            return target.model
        point -= weight
    raise AssertionError("the weights' sum is larger than every point below it")
