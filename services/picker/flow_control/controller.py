"""The flow controller of one picker: requests come in, and leave by dispatch, expiry, cancellation or shutdown.

It has no clock and starts nothing: its caller calls `dispatch` on every event that can make room or turn (an arrival, a
released charge, a fresh frame, another layout, a peer's table) and when `next_wake` is due. Each request's outcome is
reported once. Calls are bounded: `dispatch`, `expire` and `shut_down` end after `MAX_AT_ONCE` requests, and `next_wake`
says that there are more. What a request costs depends on the bands that have requests, not on those that there are.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from math import inf
from typing import Protocol

from msgspec import Struct

from services.picker.flow_control.band import LINGER, Band, FlowCount, OnPolicyFailure
from services.picker.flow_control.deadlines import Deadlines
from services.picker.flow_control.division import Division
from services.picker.flow_control.drain_rate import DrainRate
from services.picker.flow_control.flow import Flow, Size
from services.picker.flow_control.ladder import Ceilings, Ladder
from services.picker.flow_control.peers import Peers
from services.picker.flow_control.queue_table import pack
from services.picker.flow_control.settings import FlowControlSettings
from services.picker.flow_control.strict_priority import StrictPriority
from services.picker.flow_control.waiting import DISPATCHED, NEW, OTHER_FLOWS, RUNNING, Outcome, Waiting
from shared.bus.columns import flow_hash
from shared.bus.messages import MAX_BANDS, QueueTable
from shared.plugin import Plugin

MAX_AT_ONCE = 100
"""Requests that one call lets go: a few milliseconds."""
SIZES: tuple[Size, ...] = ("requests", "bytes")


class Pool(Protocol):
    """What the caller knows of the pool at the moment, with every charge that was made."""

    @property
    def empty(self) -> bool:
        """Whether it has no endpoints."""

    @property
    def saturation(self) -> float:
        """0 is idle, 1 and more is full."""

    def room(self, ceiling: float) -> float:
        """Average requests that fit until the saturation reaches the ceiling: at least 1 while it is below."""


OnOutcome = Callable[[Waiting, Outcome], None]
"""Is told how a wait ends. A dispatched request is charged before this returns."""


class BlockedBand(Struct, frozen=True):
    """A band whose requests wait because the pool is too full for it."""

    priority: int
    ceiling: float


def _ignore(_policy: Plugin, _error: Exception) -> None:
    """Report no policy's failure."""


class FlowController:
    """The queues of one picker. `requests` and `bytes` are those of all bands."""

    def __init__(
        self,
        settings: FlowControlSettings,
        on_outcome: OnOutcome,
        *,
        id: str = "",
        failed: OnPolicyFailure = _ignore,
        peers: Peers | None = None,
    ) -> None:
        """`peers` are known from an earlier controller."""
        self.settings = settings
        self.requests = self.bytes = 0
        self.saturation = 0.0
        """As the last dispatch saw it."""
        self.peers = Peers() if peers is None else peers
        self._id, self._on_outcome, self._failed = id, on_outcome, failed
        self._bands: dict[int, Band] = {}
        self._flows = FlowCount()
        self._changes_before = 0
        """Of bands that are gone."""
        self._divisions: dict[int, Division] = {}
        self._weights = {flow_hash(flow): weight for flow, weight in settings.weights.items()}
        self._queued: dict[int, Band] = {}
        """The bands that have requests, by priority."""
        self._known: frozenset[int] = frozenset()
        """The priorities of the pool."""
        self._wanted: list[int] = []
        """Those of them, and of the configuration, that have bands of their own, in ascending order."""
        self._unwanted: set[int] = set()
        """Bands that go when they are empty."""
        self._ladder = Ladder(self._bands.keys(), self.peers, settings.usage_limits, failed)
        self._deadlines = Deadlines(settings.ttl, settings.no_endpoint_ttl, settings.longest_wait)
        self._dispatching = self._stopped = False
        self._retry = inf
        self._strict = StrictPriority(self.peers)
        self._ceilings = Ceilings(0.0, {}, -inf)
        self._full = -inf
        """As the last dispatch saw them, and the highest band for which it found the pool too full."""
        self._divided: set[Division] = set()
        """Those that were asked since the pool was full."""
        self._drained = DrainRate()
        self._makes_room: dict[Size, tuple[int, Flow]] = {}
        """The flow that makes room for the last request that needed it, once lower bands are empty, and its band."""
        self.ensure_bands(())

    # ---- bands -----------------------------------------------------------------------------------------------------

    def ensure_bands(self, priorities: Iterable[int]) -> None:
        """Have bands for these priorities besides those of the configuration and 0, which always exist. If there would
        be more than `MAX_BANDS`, only the highest of these priorities, and the lowest, have bands, so all pickers have
        the same. Bands that aren't wanted any more are removed once they are empty."""
        always = {0, *self.settings.bands}
        self._known = frozenset(priorities)
        others, most = sorted(self._known - always), max(MAX_BANDS - len(always), 1)
        del others[1 : 1 + max(len(others) - most, 0)]
        self._wanted = sorted([*always, *others])
        for priority in set(self._wanted) - self._bands.keys():
            band = Band(priority, self.settings.band(priority), self.settings.weights, self._failed, self._flows)
            self._bands[priority] = band
            self._divisions[priority] = Division(self._id, band, self.peers, self._weights, self.settings.max_rows)
        self._unwanted = self._bands.keys() - set(self._wanted)
        for priority in list(self._unwanted):
            self._drop_if_empty(self._bands[priority])
        self._ladder.changed()

    def bands(self) -> list[Band]:
        """From the highest."""
        return [self._bands[priority] for priority in sorted(self._bands, reverse=True)]

    @property
    def without_band(self) -> int:
        """How many of the priorities have no band of their own."""
        return len(self._known.difference(self._wanted))

    def _band_of(self, priority: int) -> Band:
        """The band in which requests of a priority queue: its own; the next lower one, if it has none; 0, if it isn't
        known. As the lowest priority has a band, negative ones, which may be evicted, share no band with others."""
        band = self._bands.get(priority)
        if band is None or (self._unwanted and priority in self._unwanted):
            at = bisect_right(self._wanted, priority) - 1
            band = self._bands[self._wanted[at] if priority in self._known else 0]
        return band

    def _drop_if_empty(self, band: Band) -> None:
        """Remove a band that isn't wanted any more, if nothing waits or runs in it."""
        if not band.requests and not band.running:
            self._changes_before += band.changes
            self._unwanted.discard(band.priority)
            self._flows.count -= len(band.flows)
            del self._bands[band.priority]
            self._divided.discard(self._divisions.pop(band.priority))
            self._ladder.changed()

    # ---- requests come and go --------------------------------------------------------------------------------------

    def passes(self, item: Waiting, now: float, pool: Pool) -> bool:
        """Dispatch a new request if nothing prevents it, without reporting its outcome. Returns False if it has to be
        queued."""
        if not (self.requests or self.peers.waiting or self._dispatching or self._stopped):
            band = self._band_of(item.priority)
            ceilings = self._ladder.ceilings(pool.saturation)
            priority = band.priority
            if (
                priority > ceilings.closed
                and not band.refuses(item)
                and not self._full_for(item)
                and pool.room(ceilings.of[priority]) >= 1
            ):
                band.pass_through(item, self._flow_of(item, band) if band.by_flow else "", now)
                self._drained.passed += 1
                return True
        if pool.empty is not self._deadlines.empty:
            self._deadlines.observe(pool.empty, now)
        return False

    def enqueue(self, item: Waiting, now: float) -> Outcome | None:
        """Queue a request, or say why not. Its priority is then that of its band. Others may make room for it."""
        band = self._band_of(item.priority)
        item.priority = band.priority
        item.enqueued_at = now if item.since is None else item.since
        flow = self._flow_of(item, band)
        refused = self._refusal(item, band, flow)
        if refused is not None:
            return refused
        if not self.requests:
            self._strict.pause()
        self._deadlines.add(item)
        band.add(item, flow)
        self._queued[band.priority] = band
        self.requests += 1
        self.bytes += item.bytes
        self._displace(now)
        return None

    def cancel(self, item: Waiting, now: float) -> bool:
        """The client no longer waits for the request. False if it isn't queued."""
        return self._dequeue(item, Outcome.CANCELLED, now)

    def finished(self, item: Waiting, now: float, prompt_tokens: int = 0, completion_tokens: int = 0) -> None:
        """A dispatched request has released its charges. Further calls do nothing."""
        if item.state is RUNNING:
            band = self._bands[item.priority]
            band.finish(item, prompt_tokens, completion_tokens, now)
            if self._unwanted and item.priority in self._unwanted:
                self._drop_if_empty(band)

    def expire(self, now: float, empty: bool) -> int:
        """End the waits whose time is over, or that others displace; returns how many. `empty` says whether the pool
        has no endpoints."""
        deadlines = self._deadlines
        deadlines.observe(empty, now)
        ended = self._displace(now)
        outcome = Outcome.EXPIRED_NO_ENDPOINTS if empty else Outcome.EXPIRED
        while ended < MAX_AT_ONCE and (item := deadlines.due(now)) is not None:
            ended += self._dequeue(item, outcome, now)
        return ended

    def shut_down(self, now: float) -> int:
        """Take no more requests, and end the waits of those that are there; how many. To be called until it is 0."""
        self._stopped = True
        ended = 0
        for band in self.bands():
            while ended < MAX_AT_ONCE and band.requests and (flow := band.pick(now)) is not None:
                head = flow.queue.peek()
                assert head is not None
                ended += self._dequeue(head, Outcome.SHUT_DOWN, now)
        return ended

    def _refusal(self, item: Waiting, band: Band, flow: str) -> Outcome | None:
        if item.state is not NEW:
            raise ValueError(f"{item!r} was queued before")
        if self._stopped:
            return Outcome.SHUT_DOWN
        if band.refuses(item) or (self._full_for(item) and not self._others_make_room(item, band, flow)):
            return Outcome.REJECTED_NO_ENDPOINTS if self._deadlines.empty else Outcome.REJECTED_CAPACITY
        return None

    def _full_for(self, item: Waiting) -> bool:
        """Whether all queues together would exceed a limit with the request."""
        return self._excess("requests", 1) > 0 or self._excess("bytes", item.bytes) > 0

    def _excess(self, what: Size, more: int = 0) -> int:
        """By how much all queues together would exceed their limit with so much more; 0 or less if they wouldn't."""
        if what == "requests":
            most, used = self.settings.max_requests, self.requests
        else:
            most, used = self.settings.max_bytes, self.bytes
        return used + more - most if most else 0

    def _others_make_room(self, item: Waiting, band: Band, flow: str) -> bool:
        """Whether the limits of all queues leave room for the request once others are displaced: those of lower bands;
        if they aren't enough, at most `MAX_AT_ONCE` of the band's fullest flow, the newest, as long as it keeps no less
        than this flow then has. So two flows don't displace each other in turns, and one request not thousands."""
        self._makes_room.clear()
        lower = [other for priority, other in self._queued.items() if priority < band.priority]
        own = band.flows.get(flow)
        for what in SIZES:
            size = 1 if what == "requests" else item.bytes
            missing = self._excess(what, size) - sum(getattr(other, what) for other in lower)
            if missing > 0:
                if not band.requests:
                    return False
                fullest = band.columns.fullest(what)
                spare = getattr(fullest, what) - size - (0 if own is None else getattr(own, what))
                if not missing <= fullest.freed_by_newest(what, missing, MAX_AT_ONCE) <= spare:
                    return False
                self._makes_room[what] = band.priority, fullest
        return True

    def _displace(self, now: float) -> int:
        """While all queues together exceed a limit, end waits in the lowest band: each time, that of the newest request
        of the fullest flow, or of the one that `_others_make_room` has chosen; returns how many were ended."""
        ended = 0
        for what in SIZES:
            while ended < MAX_AT_ONCE and self._excess(what) > 0:
                lowest = min(priority for priority, band in self._queued.items() if getattr(band, what))
                within, flow = self._makes_room.get(what, (lowest, None))
                if flow is None or within != lowest or not getattr(flow, what):
                    flow = self._queued[lowest].columns.fullest(what)
                ended += self._dequeue(flow.newest, Outcome.DISPLACED, now)
        return ended

    def _flow_of(self, item: Waiting, band: Band) -> str:
        """The flow that it queues in: its own, unless there are too many."""
        if not band.by_flow:
            return ""
        if item.flow in band.flows or self._flows.count < self.settings.max_flows:
            return item.flow
        forgotten = any(other.forget_idle(inf, 1) for other in self._bands.values())
        return item.flow if forgotten else OTHER_FLOWS

    def _dequeue(self, item: Waiting, outcome: Outcome, now: float) -> bool:
        if not item.queued:
            return False
        band = self._bands[item.priority]
        band.remove(item, now)
        self._forget_item(item, band)
        if self._unwanted and item.priority in self._unwanted:
            self._drop_if_empty(band)
        self._on_outcome(item, outcome)
        return True

    def _forget_item(self, item: Waiting, band: Band) -> None:
        if not band.requests:
            del self._queued[band.priority]
        self._deadlines.discard(item)
        self.requests -= 1
        self.bytes -= item.bytes

    # ---- dispatch --------------------------------------------------------------------------------------------------

    def dispatch(self, now: float, pool: Pool, cause: str = "") -> int:
        """Dispatch requests while there is room for them, each charged before the next; returns how many. `cause` is
        the event, for explanations. A nested call does nothing: the outer one continues."""
        if self._dispatching:
            return 0
        self._deadlines.observe(pool.empty, now)
        self.peers.expire(now)
        self._dispatching, self._retry, done = True, inf, 0
        try:
            while self.requests:
                if done == MAX_AT_ONCE:
                    self._retry = now
                    break
                item = self._next(now, pool)
                if item is None:
                    break
                item.released_by = cause
                done += 1
                self._on_outcome(item, DISPATCHED)
        finally:
            self._dispatching = False
        return done

    def _next(self, now: float, pool: Pool) -> Waiting | None:
        """The request that leaves next, if one may."""
        self._ceilings = ceilings = self._ladder.ceilings(pool.saturation)
        self.saturation = saturation = ceilings.saturation
        self._full = -inf
        for priority in sorted({*self._queued, *self._ladder.claimed}, reverse=True):
            if priority <= ceilings.closed:
                break
            ceiling, band = ceilings.of[priority], self._queued.get(priority)
            if band is None:
                if self._strict.holds_back(priority, saturation / ceiling, now):
                    self._retry = min(self._retry, self._strict.next_look(), self.peers.next_expiry())
                    return None
                continue
            room = pool.room(ceiling)
            if not room >= 1:
                self._close(priority, now)
                return None
            division = self._divisions[priority]
            self._divided.add(division)
            if division.allowance(room, now, saturation / ceiling) < 1:
                self._retry = min(self._retry, division.next_look())
                return None
            flow = band.pick(now)
            if flow is None:
                continue
            item = band.dispatch(flow, now)
            self._forget_item(item, band)
            self._drained.passed += 1
            self._drained.fold(now)
            return item
        if ceilings.closed > -inf:
            self._close(ceilings.closed, now)
        return None

    def _close(self, priority: float, now: float) -> None:
        """The pool is too full for this band and all lower ones."""
        self._full = priority
        self._strict.no_room()
        for division in self._divided:
            division.no_room()
        self._divided.clear()
        retry = self.settings.usage_limits.RETRY
        if retry is not None and self.saturation < 1.0:
            self._retry = min(self._retry, now + retry)

    def next_wake(self) -> float:
        """When to call `expire` and `dispatch` though nothing has happened; infinite for never."""
        if self._excess("requests") > 0 or self._excess("bytes") > 0:
            return 0.0  # `expire` displaces more
        return min(self._retry, self._deadlines.next()) if self.requests else inf

    def blocked(self) -> list[BlockedBand]:
        """The bands with requests here for which the last dispatch found the pool too full, from the highest: those for
        which an eviction would make room."""
        return [
            BlockedBand(priority, self._ceilings.of[priority])
            for priority in sorted(self._queued, reverse=True)
            if priority <= self._full and 0 < self._ceilings.of.get(priority, 0.0) <= self.saturation
        ]

    def totals(self, now: float) -> dict[int, tuple[int, int, float]]:
        """What waits at all pickers, by priority: (requests, tokens, seconds that the oldest has waited)."""
        totals: dict[int, tuple[int, int, float]] = {}
        for priority in self._ladder.priorities:
            band = self._bands.get(priority)
            requests, tokens, oldest = (0, 0, 0.0) if band is None else (band.requests, band.tokens, band.age(now))
            for _, seen, peer in self.peers.of(priority):
                if peer.requests:
                    requests, tokens = requests + peer.requests, tokens + peer.tokens
                    oldest = max(oldest, peer.age + now - seen)
            totals[priority] = requests, tokens, oldest
        return totals

    @property
    def changes(self) -> int:
        """Counts what changes for peers."""
        return self._changes_before + sum(band.changes for band in self._bands.values())

    # ---- peers -----------------------------------------------------------------------------------------------------

    def table(self, now: float) -> QueueTable:
        """The table for peers."""
        bands = self.bands()
        for band in bands:
            band.forget_idle(now - LINGER)
        bands = [band for band in bands if len(band.columns)][:MAX_BANDS]
        return pack(bands, now, self.peers.rows(self.settings.max_rows, len(bands)))

    def apply(self, sender: str, run: int, sent: float, table: QueueTable, now: float) -> None:
        """A peer's sound table has come; `run` and `sent` are those of the load that it came with."""
        for news in self.peers.apply(sender, run, sent, table, now):
            band = self._bands.get(news.priority)
            if band is None:
                continue
            if news.dispatched:
                band.dispatched_elsewhere(news.flow, news.dispatched)
            if news.served:
                band.served_elsewhere(news.flow, news.served, now)

    def forget(self, sender: str) -> None:
        """A peer has left. Its requests don't count any more."""
        self.peers.forget(sender)

    def maintain(self, now: float) -> None:
        """Handle changes without an event. Call it a few times a second."""
        self.peers.expire(now)
        self._drained.fold(now)

    def retry_after(self, now: float) -> int:
        """Seconds until the queue, as long as it is, will have drained: for `Retry-After`."""
        return self._drained.seconds(self.requests, now)

    def __repr__(self) -> str:
        return f"<FlowController {self.requests} waiting in {len(self._bands)} bands, {self.peers!r}>"
