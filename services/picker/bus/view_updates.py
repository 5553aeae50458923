"""What the bus brings to a picker's view: facts, frames of attributes, and the other pickers' loads."""

import time
from collections.abc import Callable, Iterable, Sequence

from services.picker.flow_control.admission import ENDPOINTS, FRAME, FlowAdmission
from services.picker.state.view import View
from shared.bus import Msg
from shared.bus.connection import Bus
from shared.bus.duplicate_id import DuplicateId
from shared.bus.facts import Delete, Event, Reset, Upsert
from shared.bus.incarnations import Incarnations
from shared.bus.messages import Frame, Load
from shared.bus.queueing_delay import IMPLAUSIBLE
from shared.bus.subjects import Subjects, parse_key
from shared.datalayer.endpoints import EndpointDispatcher, EndpointExtractors, notify_first
from shared.datalayer.events import EventCounts
from shared.model import Configuration, Endpoint


class ViewUpdates:
    """Applies each message to the view, and notifies flow control and the endpoint extractors.

    `on_config` gets the text and the origin of a published configuration, both empty when there is none; `on_leave` the
    id of a picker that has left. `run_in_background` runs an iterator to its end, with other work in between.
    """

    def __init__(
        self,
        id: str,
        bus: Bus,
        subjects: Subjects,
        view: View,
        flow: FlowAdmission,
        event_counts: EventCounts,
        duplicate_id: DuplicateId,
        *,
        on_config: Callable[[str, str], None],
        on_leave: Callable[[str], None],
        run_in_background: Callable[[Iterable[object]], None],
    ) -> None:
        self._id = id
        self._malformed = bus.malformed
        self._subjects = subjects
        self._view = view
        self._flow = flow
        self._event_counts = event_counts
        self._duplicate_id = duplicate_id
        self._on_config = on_config
        self._on_leave = on_leave
        self._run_in_background = run_in_background
        self._peers = Incarnations(bus.malformed.conflicting, bus.limits.max_senders)
        self._extractors = self._dispatcher(())

    def __repr__(self) -> str:
        return f"<ViewUpdates of {self._id}: {len(self._view.endpoints)} endpoints>"

    def feed(self, extractors: Sequence[EndpointExtractors]) -> None:
        """Send endpoint events to these extractors, which begin with all endpoints."""
        self._extractors.close()
        self._extractors = self._dispatcher(extractors)
        self._reset_extractors()

    def _reset_extractors(self) -> None:
        pending = self._extractors.reset(self._view.endpoints)
        if notify_first(pending):
            self._run_in_background(pending)

    def _dispatcher(self, extractors: Sequence[EndpointExtractors]) -> EndpointDispatcher:
        return EndpointDispatcher(extractors, self._view.made, self._event_counts)

    def on_event(self, event: Event) -> None:
        """Facts: endpoints, resources, the configuration."""
        self._flow.notify(ENDPOINTS)
        match event:
            case Reset(facts=facts):
                self._view.reset(facts)
                self._reset_extractors()
                published = next((fact for fact in facts.values() if isinstance(fact, Configuration)), None)
                self._on_config(published.text if published else "", published.origin if published else "")
            case Upsert(fact=Configuration() as fact):
                self._on_config(fact.text, fact.origin)
            case Upsert(key=key, fact=fact):
                self._view.upsert(key, fact)
                if isinstance(fact, Endpoint):
                    self._extractors.upsert(fact)
            case Delete(key=key):
                parsed = parse_key(key)
                if parsed.kind == "config":
                    self._on_config("", "")
                    return
                self._view.delete(key)
                if parsed.kind == "endpoint":
                    self._extractors.delete(parsed.name)

    def on_frame(self, frame: Frame, extra_age: float) -> None:
        self._view.apply_frame(frame, time.monotonic(), extra_age)
        self._flow.notify(FRAME)

    def on_load(self, message: Msg) -> None:
        """A picker's load. One that can't be from its sender, or isn't plausible, is counted and refused."""
        load = self._malformed.decode(Load, message.data, message.subject, self._subjects.sender(message.subject))
        if load is None:
            return
        now = time.monotonic()
        if load.sender == self._id:
            self._duplicate_id.observe(now, leaving=load.leaving)
            return
        if not self._peers.accepts(message.subject, load.sender, load.run, now, leaving=load.leaving):
            return
        if load.leaving:
            self._on_leave(load.sender)
        if self._view.apply_load(load, now):
            self._flow.apply(load, now)
        else:
            self._malformed.implausible.report(load.sender, IMPLAUSIBLE, subject=message.subject)
