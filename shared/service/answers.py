"""How a process with a bus answers queries: `StatusQuery` in every tier, and what a tier adds."""

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from shared.bus.connection import Bus
from shared.bus.query_messages import QueryArguments, StatusQuery
from shared.bus.replica import Replica
from shared.bus.responder import Answering, Document, Responder
from shared.bus.subjects import Subjects, split_pool
from shared.service.admin import encoded
from shared.service.process import Service
from shared.service.status import BusStatus, FactsStatus, MemberStatus, Repairs
from shared.version import VERSION

SHOWN = 20
"""Names that a status lists at most."""


def make_responder(
    service: Service,
    bus: Bus,
    subjects: Subjects,
    pools: Sequence[str],
    status: Callable[[], MemberStatus],
    others: Mapping[type[QueryArguments], Answering] | None = None,
) -> Responder:
    """The process's responder to queries, not yet started; `pools` are tokens."""

    def answer_status(_: StatusQuery) -> Document:
        yield encoded(status())

    answers: dict[type[QueryArguments], Answering] = {StatusQuery: answer_status, **(others or {})}
    return Responder(bus, subjects, pools, service.tier, service.id, answers)


def status_of(
    service: Service,
    bus: Bus,
    pools: Sequence[str],
    replica: Replica | None,
    *,
    convergence: Mapping[str, Repairs] | None = None,
    **details: Any,
) -> MemberStatus:
    """The status of a process, with the `details` that its tier gives."""
    reasons = service.readiness.reasons()
    parts = dict(convergence or {})
    if replica is not None:
        counters = replica.counters
        parts["facts"] = Repairs(
            differs_for=round(replica.differs_for(), 3), found=counters.gaps, repaired=counters.repairs
        )
    return MemberStatus(
        id=service.id,
        tier=service.tier,
        version=VERSION,
        pools=tuple("/".join(split_pool(pool)) for pool in pools),
        host=socket.gethostname(),
        pid=os.getpid(),
        uptime=round(service.uptime(), 3),
        at=round(time.time(), 3),
        phase=service.readiness.phase.name.lower(),
        ready=not reasons,
        reasons=reasons,
        notes=service.readiness.notes(),
        configurations=tuple(service.configurations()),
        longest_pause=round(service.longest_pause(), 3),
        bus=BusStatus.of(bus, time.monotonic()),
        facts=None if replica is None else FactsStatus.of(replica),
        convergence=parts,
        **details,
    )
