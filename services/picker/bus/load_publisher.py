"""Publishes this picker's load in flight and what waits here: soon after a change, and as a heartbeat."""

import secrets
import time

import structlog

from services.picker.bus.pace import Pace
from services.picker.flow_control.admission import FlowAdmission
from services.picker.state.inflight import InFlight
from shared.bus.codec import encode, load_digest
from shared.bus.connection import Bus
from shared.bus.errors import BusError
from shared.bus.messages import Load

log = structlog.get_logger(__name__)


class LoadPublisher:
    """`problem` says why peers don't receive the load; empty if they may."""

    def __init__(
        self,
        bus: Bus,
        subject: str,
        id: str,
        in_flight: InFlight,
        flow: FlowAdmission,
        *,
        interval: float,
        heartbeat: float,
    ) -> None:
        """`interval` and `heartbeat` are seconds."""
        self.problem = ""
        self._bus, self._subject, self._id = bus, subject, id
        self._in_flight, self._flow = in_flight, flow
        self._heartbeat = heartbeat
        self.pace = Pace(interval)
        self.run_id = secrets.randbits(63)
        self.sequence = 0
        self.digest = 0
        """Of the last table."""
        self._published_at = 0.0
        self._published_queue = flow.changes

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self.pace.turn(time.monotonic())
            due = time.monotonic() - self._published_at >= self._heartbeat
            if due or self._in_flight.changed or self._flow.changes != self._published_queue:
                await self.publish()
                self.pace.sent(self._published_at)

    async def publish(self, *, leaving: bool = False) -> None:
        """Publish once."""
        ids, requests, tokens = self._in_flight.columns()
        self._in_flight.published()
        self._published_queue = self._flow.changes
        self._published_at = time.monotonic()
        self.sequence += 1
        load = Load(
            sender=self._id,
            sent=self._published_at,
            sequence=self.sequence,
            run=self.run_id,
            ids=ids,
            requests=requests,
            tokens=tokens,
            queue=self._flow.table(self._published_at),
            leaving=leaving,
        )
        self.digest = load_digest(load)
        problem = ""
        try:
            await self._bus.publish(self._subject, encode(load))
        except BusError as error:  # it is larger than NATS takes
            problem = f"other pickers don't receive this picker's load: {error}"
        if problem and not self.problem:
            log.error("load.unpublished", reason=problem)
        self.problem = problem
