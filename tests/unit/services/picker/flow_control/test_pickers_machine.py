"""Several pickers with one pool, whose tables come late, or never: nothing is lost, nothing is answered twice, and what
can be dispatched is."""

from collections import Counter
from typing import Any

from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.picker.flow_control.waiting import Outcome, State, Waiting
from shared.bus.messages import QueueTable
from tests.unit.services.picker.flow_control.flows import FAIRNESS, ORDERINGS, Picker, band, settings
from tests.unit.services.picker.flow_control.simulation import PoolView

BANDS = [5, 0, -5]
LIMIT, TOTAL, TOTAL_BYTES, TTL, EMPTY_TTL = 6, 10, 60, 5.0, 8.0


Message = tuple[str, str, QueueTable, int, float]
"""From whom, to whom, the queue, the requests in flight, and when it was sent."""


class PickersMachine(RuleBasedStateMachine):
    @initialize(
        count=st.integers(1, 3),
        capacity=st.integers(0, 8),
        fairness=st.sampled_from(sorted(FAIRNESS)),
        ordering=st.sampled_from(sorted(ORDERINGS)),
    )
    def start(self, count: int, capacity: int, fairness: str, ordering: str) -> None:
        self.now = 0.0
        self.sequence = 0
        self.scaled = not capacity
        """Whether the pool was ever empty."""
        self.items: list[Waiting] = []
        self.outcomes: Counter[Any] = Counter()
        self.wires: list[Message] = []
        self.pickers: dict[str, Picker] = {}
        for number in range(count):
            how = settings(
                band(fairness, ordering, max_requests=LIMIT),
                bands={5: band(fairness, ordering, max_requests=LIMIT)},
                ttl=TTL,
                no_endpoint_ttl=EMPTY_TTL,
                max_requests=TOTAL,
                max_bytes=TOTAL_BYTES,
                max_flows=4,
                weights={"a": 2.0},
            )
            picker = Picker(how, PoolView(capacity), id=f"picker-{number}")
            picker.controller.ensure_bands(BANDS)
            picker.when_dispatched = lambda item, picker=picker: self.check_priority(picker, item)  # type: ignore[misc]
            self.pickers[f"picker-{number}"] = picker

    def check_priority(self, picker: Picker, item: Waiting) -> None:
        """A request leaves only if nothing waits above it."""
        assert not any(band.requests for band in picker.controller.bands() if band.priority > item.priority)

    def some(self, data: st.DataObject) -> Picker:
        return self.pickers[data.draw(st.sampled_from(sorted(self.pickers)))]

    def queued(self, picker: Picker) -> list[Waiting]:
        return [item for item in self.items if item.owner[0] is picker and item.state is State.QUEUED]

    @rule(
        data=st.data(),
        flow=st.sampled_from("abcdefg"),
        priority=st.sampled_from([*BANDS, 99]),
        size=st.integers(0, 30),
        deadline=st.sampled_from([0.5, 3.0, None]),
        straight=st.booleans(),
    )
    def arrives(
        self, data: st.DataObject, flow: str, priority: int, size: int, deadline: float | None, straight: bool
    ) -> None:
        picker = self.some(data)
        self.sequence += 1
        gives_up = float("inf") if deadline is None else self.now + deadline
        item = Waiting(
            flow, priority, self.now, bytes=size, tokens=size, deadline=gives_up, owner=(picker, self.sequence)
        )
        band = 0 if priority == 99 else priority
        mine = {ticket: ticket.within for ticket in self.queued(picker)}
        above = [ticket for ticket in mine if ticket.priority >= band]
        within = sum(ticket.priority == band for ticket in mine) < LIMIT
        fits = within and len(mine) < TOTAL and sum(ticket.bytes for ticket in mine) + size <= TOTAL_BYTES
        fits_above = within and len(above) < TOTAL and sum(ticket.bytes for ticket in above) + size <= TOTAL_BYTES
        picker.now = self.now
        outcome = picker.arrives(item) if straight else picker.controller.enqueue(item, self.now)
        taken = outcome in (None, Outcome.DISPATCHED)
        assert fits_above <= taken <= within
        displaced = [ticket for ticket in mine if not ticket.queued]
        assert bool(displaced) is (taken and not fits)
        for ticket in displaced:
            assert ticket.priority <= band
            if ticket.priority == band:
                theirs, own = mine[ticket], item.within
                assert theirs is not own
                assert theirs.requests >= own.requests or theirs.bytes >= own.bytes
        if outcome is Outcome.DISPATCHED:
            assert not mine
            assert picker.pool.room(1.0) >= 1
            picker.pool.in_flight += 1
            picker.running.append(item)
        if taken:
            self.items.append(item)
            if outcome is not None:
                self.outcomes[item.owner] += 1

    @rule(
        data=st.data(), flows=st.lists(st.sampled_from("abc"), min_size=2, max_size=5), priority=st.sampled_from(BANDS)
    )
    def a_burst_comes(self, data: st.DataObject, flows: list[str], priority: int) -> None:
        for picker in self.pickers.values():
            for flow in flows[data.draw(st.integers(0, 2)) :]:
                self.sequence += 1
                item = Waiting(flow, priority, self.now, tokens=1, owner=(picker, self.sequence))
                if picker.controller.enqueue(item, self.now) is None:
                    self.items.append(item)

    @rule(data=st.data())
    def dispatches(self, data: st.DataObject) -> None:
        self.dispatch(self.some(data))

    def dispatch(self, picker: Picker) -> int:
        picker.now = self.now
        room = picker.pool.room(1.0)
        done = len(picker.dispatch())
        assert done <= max(room, 0)
        return done

    @rule(data=st.data())
    def finishes(self, data: st.DataObject) -> None:
        picker = self.some(data)
        if picker.running:
            picker.now = self.now
            picker.finish(data.draw(st.sampled_from(picker.running)), 5, data.draw(st.integers(0, 20)))

    @rule(data=st.data())
    def client_leaves(self, data: st.DataObject) -> None:
        picker = self.some(data)
        if waiting := self.queued(picker):
            assert picker.controller.cancel(data.draw(st.sampled_from(waiting)), self.now)

    @rule(data=st.data(), wanted=st.sets(st.sampled_from(BANDS)))
    def objectives_change(self, data: st.DataObject, wanted: set[int]) -> None:
        """A band that isn't wanted is gone when it is empty, and is there again when it is wanted again."""
        controller = self.some(data).controller
        controller.ensure_bands(wanted)
        controller.ensure_bands(BANDS)

    @rule(data=st.data())
    def publishes(self, data: st.DataObject) -> None:
        self.publish(self.some(data))

    def publish(self, picker: Picker) -> None:
        name = next(name for name, known in self.pickers.items() if known is picker)
        table = picker.controller.table(self.now)
        assert table.fault() is None
        for other in self.pickers.keys() - {name}:
            self.wires.append((name, other, table, picker.pool.in_flight, self.now))

    @precondition(lambda self: self.wires)
    @rule(data=st.data(), lost=st.booleans())
    def a_message_comes(self, data: st.DataObject, lost: bool) -> None:
        message = self.wires.pop(data.draw(st.integers(0, len(self.wires) - 1)))
        if not lost:
            self.hear(message)

    def hear(self, message: Message) -> None:
        sender, receiver, table, in_flight, sent = message
        picker = self.pickers[receiver]
        picker.controller.apply(sender, 1, sent, table, self.now)
        assert isinstance(picker.pool, PoolView)
        picker.pool.hear(sender, in_flight, sent)

    @rule(seconds=st.sampled_from([0.005, 0.03, 0.1, 1.0, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        for picker in self.pickers.values():
            picker.now = self.now
            assert isinstance(picker.pool, PoolView)
            picker.pool.expire(self.now)
            if picker.controller.next_wake() <= self.now:
                picker.controller.expire(self.now, picker.pool.empty)
                self.dispatch(picker)
            longest = max(TTL, EMPTY_TTL) + 2 if self.scaled else TTL
            for item in self.queued(picker):
                assert item.deadline > self.now
                assert item.enqueued_at + longest > self.now

    @rule(capacity=st.integers(0, 8))
    def the_pool_scales(self, capacity: int) -> None:
        self.scaled |= not capacity
        for picker in self.pickers.values():
            picker.pool.capacity = capacity

    @rule()
    def all_hear_each_other(self) -> None:
        """Whoever waited in vain before: a few rounds of tables without loss let requests go until there is no room."""
        self.wires.clear()
        for _ in range(4):
            self.now += 0.04
            for picker in self.pickers.values():
                self.publish(picker)
            while self.wires:
                self.hear(self.wires.pop(0))
            for picker in self.pickers.values():
                picker.controller.expire(self.now, picker.pool.empty)
            for picker in self.pickers.values():
                self.dispatch(picker)
        capacity = next(iter(self.pickers.values())).pool.capacity
        in_flight = sum(picker.pool.in_flight for picker in self.pickers.values())
        waiting = sum(picker.controller.requests for picker in self.pickers.values())
        assert not waiting or in_flight >= capacity

    @invariant()
    def everything_is_counted(self) -> None:
        if not hasattr(self, "pickers"):
            return
        for picker in self.pickers.values():
            self.outcomes.update(owner for owner, _ in picker.outcomes)
            picker.outcomes.clear()
            waiting = self.queued(picker)
            assert picker.controller.requests == len(waiting) <= TOTAL
            assert picker.controller.bytes == sum(item.bytes for item in waiting) <= TOTAL_BYTES
            for queued in picker.controller.bands():
                mine = [item for item in waiting if item.priority == queued.priority]
                assert (queued.requests, queued.bytes) == (len(mine), sum(item.bytes for item in mine))
                assert queued.tokens == sum(flow.tokens for flow in queued.flows.values())
                assert queued.running == sum(item.priority == queued.priority for item in picker.running)
                assert len(queued.flows) <= 4 + 1
        for item in self.items:
            assert self.outcomes[item.owner] == (0 if item.state is State.QUEUED else 1)

    def teardown(self) -> None:
        if not hasattr(self, "pickers"):
            return
        for picker in self.pickers.values():
            picker.controller.shut_down(self.now)
            while picker.running:
                picker.finish(picker.running[-1])
        self.everything_is_counted()
        for picker in self.pickers.values():
            assert (picker.controller.requests, picker.controller.bytes, picker.pool.in_flight) == (0, 0, 0)
            assert len(picker.controller.table(self.now + 10).flows) == 0
            assert not any(band.flows or band.tokens or band.running for band in picker.controller.bands())


TestPickers = PickersMachine.TestCase
TestPickers.settings = hypothesis_settings(max_examples=60, stateful_step_count=40, deadline=None)
