"""`agent-identity`: the session of a coding agent, from the headers that agents send.

It is the fairness id of requests that name none, so that the turns of one agent share a queue; and an attribute for
session affinity.
"""

from msgspec import Struct

from services.picker.request import Headers
from services.picker.scheduling.checks import HeaderName
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.interfaces import PreAdmissionProcessor, Producer
from shared.attributes import AttributeKey
from shared.plugin import Role

AGENT_IDENTITY = AttributeKey("agent-identity", "agent-identity", str)
SESSION_HEADERS = ("x-claude-code-session-id", "x-session-affinity", "session-id", "session_id")
"""Those of Claude Code, OpenCode and Codex, in this order."""


class AgentIdentityParameters(Struct, frozen=True, rename="camel"):
    """Further headers, which go before the known ones."""

    additional_session_headers: tuple[HeaderName, ...] = ()


class AgentIdentity(Producer, PreAdmissionProcessor):
    """The first of the headers that isn't empty."""

    TYPE = "agent-identity"
    ROLES = frozenset({Role.DATA_PRODUCER, Role.PRE_ADMISSION})
    PRODUCES = (AGENT_IDENTITY,)
    Parameters = AgentIdentityParameters
    parameters: AgentIdentityParameters

    def __init__(self, name: str, parameters: AgentIdentityParameters | None = None) -> None:
        super().__init__(name, parameters)
        further = (header.lower() for header in self.parameters.additional_session_headers)
        self._headers = tuple(dict.fromkeys((*further, *SESSION_HEADERS)))

    def fairness_id(self, headers: Headers) -> str:
        return headers.first_of(self._headers)

    def produce(self, cycle: Cycle) -> None:
        if session := self.fairness_id(cycle.request.headers):
            cycle.put(AGENT_IDENTITY, session)
