"""The questions that only pickers answer."""

from collections.abc import Mapping
from functools import partial

from services.picker.reports.explain import decision, decisions, explain
from services.picker.reports.replay_responder import DocumentRules, ReplayResponder
from services.picker.reports.reports import Parts
from services.picker.reports.view import view
from shared.bus.query_messages import AskDecision, AskDecisions, AskExplain, AskReplay, AskView, Question
from shared.bus.responder import Answering


def answers(parts: Parts, pool: str, id: str, rules: DocumentRules) -> Mapping[type[Question], Answering]:
    """What answers each; `pool` is a token, `id` the picker's."""
    return {
        AskDecisions: partial(decisions, parts),
        AskDecision: partial(decision, parts),
        AskExplain: partial(explain, parts),
        AskReplay: ReplayResponder(parts.handler, rules).answer,
        AskView: partial(view, parts, pool, id),
    }
