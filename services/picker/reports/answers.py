"""The questions that only pickers answer."""

from collections.abc import Mapping
from functools import partial

from services.picker.reports.explain import decision, decisions, explain
from services.picker.reports.replay_responder import DocumentRules, ReplayResponder
from services.picker.reports.reports import Parts
from services.picker.reports.view import view
from shared.bus.query_messages import (
    DecisionQuery,
    DecisionsQuery,
    ExplainQuery,
    QueryArguments,
    ReplayQuery,
    ViewQuery,
)
from shared.bus.responder import Answering


def answers(parts: Parts, pool: str, id: str, rules: DocumentRules) -> Mapping[type[QueryArguments], Answering]:
    """What answers each; `pool` is a token, `id` the picker's."""
    return {
        DecisionsQuery: partial(decisions, parts),
        DecisionQuery: partial(decision, parts),
        ExplainQuery: partial(explain, parts),
        ReplayQuery: ReplayResponder(parts.handler, rules).answer,
        ViewQuery: partial(view, parts, pool, id),
    }
