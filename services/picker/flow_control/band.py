"""A priority band: its flows, its limits, and whose turn it is."""

from collections import OrderedDict, deque
from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct

from services.picker.flow_control.flow import Flow
from services.picker.flow_control.flow_columns import FlowColumns
from services.picker.flow_control.interfaces import FairnessPolicy, FlowOrder
from services.picker.flow_control.settings import BandSettings
from services.picker.flow_control.waiting import DONE, QUEUED, RUNNING, Waiting
from shared.plugin import Plugin

WINDOW = 0.03
"""Seconds for which peers may not know of a dispatch: a load table's 20 ms, and its way."""
MAX_RECENT = 1000
"""Dispatches within the window that are counted: more than a picker makes."""
COMPLETION_WEIGHT = 2
"""Prompt tokens that a completion token costs as much as."""
MAX_COST = 2**31 - 1
"""Tokens that one request can have cost: model servers report them, peers learn of no more at once, and sums of 64 bits
hold four billion such requests."""
LINGER = 1.5
"""Seconds for which the counts of an idle flow stay, so that peers hear the last of them: three heartbeats."""
MAX_FORGOTTEN = 500
"""Idle flows that one call forgets: less than a millisecond."""

OnPolicyFailure = Callable[[Plugin, Exception], None]
"""Hears of a policy's failure."""


class _OneQueue(FlowOrder):
    """The order of a band whose flows don't matter: the one flow that there is."""

    def __init__(self) -> None:
        self._flow: Flow | None = None

    def activated(self, flow: Flow) -> None:
        self._flow = flow

    def pick(self, now: float) -> Flow | None:
        return self._flow


class FlowCount(Struct):
    """The flows of all bands."""

    count: int = 0


class Band:
    """The requests of one priority. `requests`, `bytes` and `tokens` count those that wait, `dispatched` and `finished`
    all that ever were."""

    def __init__(
        self,
        priority: int,
        settings: BandSettings,
        weights: Mapping[str, float],
        failed: OnPolicyFailure,
        flows: FlowCount,
    ) -> None:
        self.priority = priority
        self.settings = settings
        self.flows: dict[str, Flow] = {}
        self.by_hash: dict[int, Flow] = {}
        """Of flows whose ids have the same hash, the first."""
        self.columns = FlowColumns()
        self._changed = self.columns.changed
        self._idle: OrderedDict[Flow, float] = OrderedDict()
        """Every idle flow, and some that aren't, with a time from which on it may have been idle, the longest ago
        first. Only `forget_idle` looks which ones are: most requests change nothing here."""
        self.requests = self.bytes = self.tokens = 0
        self.dispatched = self.finished = 0
        self._changes = 0
        self._weights = weights
        self._failed = failed
        self._flow_count = flows
        self._active: dict[Flow, None] = {}
        fairness = settings.fairness
        self.by_flow = fairness.BY_FLOW
        self._order = fairness.flow_order() if fairness.BY_FLOW else _OneQueue()
        self._counts_served = type(fairness).served is not FairnessPolicy.served
        """Whether the policy wants to know what requests have cost."""
        self._by_receipt = settings.ordering.BY_RECEIPT
        self._recent: deque[float] = deque(maxlen=MAX_RECENT)

    @property
    def running(self) -> int:
        """Dispatched requests that haven't finished."""
        return self.dispatched - self.finished

    @property
    def changes(self) -> int:
        """Counts what changes the band's demand. A request that leaves the queue and runs doesn't."""
        return self._changes + self.dispatched + self.finished

    def refuses(self, item: Waiting) -> bool:
        """Whether it would exceed a limit of the band."""
        limits = self.settings
        return self.requests + 1 > limits.max_requests or self.bytes + item.bytes > limits.max_bytes

    def add(self, item: Waiting, flow: str) -> None:
        """Queue it in this flow."""
        within = self._within(flow)
        item.ahead = self.requests
        item.within, item.queued, item.state = within, True, QUEUED
        item.priority = self.priority
        within.queue.push(self._key(item), item.received_at if self._by_receipt else 0.0, item)
        within.arrived[item] = None
        within.requests += 1
        within.tokens += item.tokens
        within.bytes += item.bytes
        self.requests += 1
        self.bytes += item.bytes
        self.tokens += item.tokens
        self._changes += 1
        self.columns.changed(within)
        if within.requests == 1:
            self._active[within] = None
            self._notify_policy(self._order.activated, within)
        elif within.queue.peek() is item:
            self._notify_policy(self._order.head_changed, within)

    def pass_through(self, item: Waiting, flow: str, now: float) -> None:
        """Dispatch it without queueing; nothing else waits."""
        within = self.flows.get(flow) or self._within(flow)
        item.within, item.state = within, RUNNING
        if item.priority != self.priority:
            item.priority = self.priority
        within.dispatched += 1
        self.dispatched += 1
        self._recent.append(now)
        self._changed(within)

    def pick(self, now: float) -> Flow | None:
        """The flow whose turn it is."""
        try:
            flow = self._order.pick(now)
            if flow is not None and flow.requests:
                return flow
        except Exception as error:  # noqa: BLE001 - a policy's failure is told, and any flow has its turn
            self._failed(self.settings.fairness, error)
        return next(iter(self._active), None)

    def dispatch(self, flow: Flow, now: float) -> Waiting:
        """Take the flow's first request."""
        item = flow.queue.pop()
        assert item is not None
        self._leave(item, flow)
        item.state = RUNNING
        flow.dispatched += 1
        self.dispatched += 1
        self._changes -= 1
        self._recent.append(now)
        self._notify_policy(self._order.dispatched, flow)
        self._request_removed(flow, now)
        return item

    def remove(self, item: Waiting, now: float) -> None:
        """The request doesn't wait any longer."""
        flow: Flow = item.within
        first = flow.queue.peek() is item
        self._leave(item, flow)
        item.state = DONE
        item.within = None
        flow.queue.discard()
        self._changes += 1
        if first and flow.requests:
            self._notify_policy(self._order.head_changed, flow)
        self._request_removed(flow, now)

    def finish(self, item: Waiting, prompt_tokens: int, completion_tokens: int, now: float) -> None:
        """The request has finished, and has cost so many tokens."""
        flow: Flow = item.within
        item.state = DONE
        flow.finished += 1
        self.finished += 1
        self._changed(flow)
        flow.idle_since = now
        if flow not in self._idle:
            self._idle[flow] = now
        cost = prompt_tokens if prompt_tokens > 0 else 0
        if completion_tokens > 0:
            cost += COMPLETION_WEIGHT * completion_tokens
        if cost:
            if cost > MAX_COST:
                cost = MAX_COST
            flow.served += cost
            if self._counts_served:
                self.served(flow.hash, cost, now)

    def served(self, hash: int, tokens: int, now: float) -> None:
        """Requests of the flow with this hash have cost so much."""
        self._tell_served(self.settings.fairness.served, hash, tokens, now)

    def served_elsewhere(self, hash: int, tokens: int, now: float) -> None:
        """The same at a peer."""
        self._tell_served(self.settings.fairness.served_elsewhere, hash, tokens, now)

    def _tell_served(self, tell: Callable[[int, int, float], None], hash: int, tokens: int, now: float) -> None:
        if self._counts_served:
            try:
                tell(hash, tokens, now)
            except Exception as error:  # noqa: BLE001 - a policy's failure is told, and costs this piece of news
                self._failed(self.settings.fairness, error)

    def dispatched_elsewhere(self, hash: int, requests: int) -> None:
        """Peers have dispatched so many of the flow with this hash."""
        flow = self.by_hash.get(hash)
        if flow is not None and flow.requests:
            self._notify_policy(lambda known: self._order.dispatched_elsewhere(known, requests), flow)

    def recent(self, now: float) -> int:
        """Requests dispatched within the window."""
        recent = self._recent
        while recent and now - recent[0] > WINDOW:
            recent.popleft()
        return len(recent)

    def age(self, now: float) -> float:
        """Seconds that the oldest request at the head of a flow has waited; 0 when none waits."""
        return max(now - float(self.columns.since.min(initial=np.inf)), 0.0)

    def forget_idle(self, before: float, most: int = MAX_FORGOTTEN) -> bool:
        """Forget up to so many of the flows that are idle since before then; whether there was one."""
        idle, forgotten, looks = self._idle, 0, MAX_FORGOTTEN
        while idle and forgotten < most and looks:
            flow, since = next(iter(idle.items()))
            if since > before:
                break
            looks -= 1
            del idle[flow]
            if not flow.idle:
                continue
            if flow.idle_since > since:
                idle[flow] = flow.idle_since
                continue
            forgotten += 1
            del self.flows[flow.id]
            if self.by_hash.get(flow.hash) is flow:
                del self.by_hash[flow.hash]
            self.columns.remove(flow)
        self._flow_count.count -= forgotten
        return forgotten > 0

    def _within(self, flow: str) -> Flow:
        within = self.flows.get(flow)
        if within is None:
            self._flow_count.count += 1
            within = self.flows[flow] = Flow(flow, self._weights.get(flow, 1.0))
            self.by_hash.setdefault(within.hash, within)
            self.columns.add(within)
        return within

    def _leave(self, item: Waiting, flow: Flow) -> None:
        item.queued = False
        del flow.arrived[item]
        flow.requests -= 1
        flow.tokens -= item.tokens
        flow.bytes -= item.bytes
        self.requests -= 1
        self.bytes -= item.bytes
        self.tokens -= item.tokens

    def _request_removed(self, flow: Flow, now: float) -> None:
        """A request of it has gone; see whether that was the last one."""
        self.columns.changed(flow)
        if flow.requests:
            return
        if flow in self._active:
            del self._active[flow]
            self._notify_policy(self._order.deactivated, flow)
        if flow.idle:
            flow.idle_since = now
            self._idle.setdefault(flow, now)

    def _key(self, item: Waiting) -> float:
        try:
            key = float(self.settings.ordering.key(item))
            if key != key:
                raise ValueError("the key is NaN")
            return key
        except Exception as error:  # noqa: BLE001 - a policy's failure is told, and the time of queueing orders
            self._failed(self.settings.ordering, error)
            return item.enqueued_at

    def _notify_policy(self, notify: Callable[[Flow], None], flow: Flow) -> None:
        try:
            notify(flow)
        except Exception as error:  # noqa: BLE001 - a policy's failure is told, and costs a turn
            self._failed(self.settings.fairness, error)

    def __repr__(self) -> str:
        return f"<Band {self.priority}: {self.requests} waiting, {self.running} running, {len(self._active)} flows>"
