"""The timing model of a model server: continuous batching in steps, as vLLM's scheduler does it.

A step computes one output token of every decoding request, and up to `prefill_chunk` prompt tokens of the others. Its
duration is fixed when it begins:

    [n > 0] · decode_time · (1 + decode_growth · (n - 1))  +  prefill_time · prompt tokens

with n decoding requests. Requests join and leave between steps. The engine has no clock: the caller passes the time in
integer nanoseconds, so that requests end at the same times however often the engine is called. Consecutive steps in
which no request joins, leaves or reports are computed at once.
"""

from collections import OrderedDict
from collections.abc import Iterable

from msgspec import Struct

from services.simulator.adapters import Adapters
from services.simulator.counters import Counters, FinishReason
from services.simulator.kv_cache import KvCache
from services.simulator.sequence import EngineRequest, RequestOutput, Sequence, Step
from services.simulator.settings import SimulatorSettings

SECOND = 1_000_000_000


class ContextTooLong(Exception):
    """Prompt and output have more tokens than the model's context."""


class Overloaded(Exception):
    """The limit of waiting and running requests is reached."""


class EngineState(Struct, frozen=True, kw_only=True):
    """The engine's gauges at one moment."""

    running: int
    waiting: int
    deferred: int
    """Waiting requests whose adapter isn't loaded."""
    prefilling: int
    kv_usage: float
    """Share of the KV blocks that requests hold, 0 to 1."""
    kv_used: int
    kv_cached: int
    loaded_adapters: tuple[str, ...]
    running_adapters: tuple[str, ...]
    waiting_adapters: tuple[str, ...]


class Engine:
    """Slots, queue, KV cache and adapters of one server, and the steps of its requests."""

    def __init__(self, settings: SimulatorSettings, now: int) -> None:
        self.settings = settings
        self.counters = Counters(settings.context_length)
        self.cache = KvCache(settings.kv_blocks, caching=settings.prefix_caching)
        self.adapters = Adapters(settings.max_adapters, round(settings.adapter_load_time * SECOND / settings.speed))
        self.revision = 0
        """Increases with every change that metrics or state show."""
        self._slowdown = 1.0
        self._now = now
        self._running: dict[str, Sequence] = {}
        self._waiting: OrderedDict[str, Sequence] = OrderedDict()
        self._step: Step | None = None
        self._stale = False
        """Whether a waiting request may be admitted at the next step."""
        self._progress: list[RequestOutput] = []

    def submit(self, request: EngineRequest, now: int) -> None:
        """Queue a request. Raises `ContextTooLong`, `Overloaded`, and ValueError for an id in use."""
        self._run(now)
        self.check([request])
        self._waiting[request.id] = Sequence(request, now)
        if request.choices:
            self.counters.params_n.observe(request.choices)
            self.counters.params_max_tokens.observe(request.max_tokens)
        self._changed(admission=True)
        self._begin(now)

    def cancel(self, id: str, now: int) -> bool:
        """Abort a request and free its slot and blocks. False if it has ended or is unknown."""
        self._run(now)
        if sequence := self._waiting.pop(id, None):
            self._finish(sequence, FinishReason.ABORT)
        elif sequence := self._running.get(id):
            self._withdraw(sequence)
            self._finish(sequence, FinishReason.ABORT)
            if not self._running:
                self._step = None
        else:
            return False
        self._begin(now)
        return True

    def slow_down(self, factor: float, now: int) -> None:
        """Multiply the duration of the steps that begin from now on; 1 is the normal speed."""
        self._run(now)
        self._slowdown = factor
        if self._step:
            self._step.disturbed = True

    def advance(self, now: int) -> list[RequestOutput]:
        """Advance to `now`. Returns the outputs since the last call, in order."""
        self._run(now)
        progress, self._progress = self._progress, []
        return progress

    def next_event(self) -> int | None:
        """When to call `advance` next; None while there are no requests."""
        times = [] if (loaded := self.adapters.next_load) is None else [loaded]
        if step := self._step:
            times.append(step.end + (self._quiet_steps(step) - 1) * step.duration)
        if self._progress:
            times.append(self._now)
        return min(times, default=None)

    def check(self, requests: list[EngineRequest]) -> None:
        """Raises what submitting all of these now would raise."""
        for request in requests:
            if request.id in self._running or request.id in self._waiting:
                raise ValueError(f"request {request.id!r} already exists")
            if request.prompt.tokens + request.output_tokens > self.settings.context_length:
                raise ContextTooLong(
                    f"{request.prompt.tokens} prompt tokens and {request.output_tokens} output tokens are more than "
                    f"the context of {self.settings.context_length} tokens"
                )
        present = len(self._running) + len(self._waiting)
        if present + len(requests) > self.settings.max_requests:
            self.counters.rejections += 1
            self.revision += 1
            raise Overloaded(
                f"{present} requests are waiting or running and {len(requests)} more would exceed the limit of "
                f"{self.settings.max_requests}; try again later"
            )

    def state(self) -> EngineState:
        """The gauges as of the last call of `advance`, `submit` or `cancel`."""
        running, waiting = self._running.values(), self._waiting.values()
        return EngineState(
            running=len(running),
            waiting=len(waiting),
            deferred=sum(sequence.deferred for sequence in waiting) if self.settings.adapters else 0,
            prefilling=sum(not sequence.decoding for sequence in running),
            kv_usage=self.cache.usage,
            kv_used=self.cache.used,
            kv_cached=self.cache.cached,
            loaded_adapters=self.adapters.loaded,
            running_adapters=_adapters(running),
            waiting_adapters=_adapters(waiting),
        )

    def _run(self, now: int) -> None:
        if now < self._now:
            raise ValueError(f"time goes backwards: {now} after {self._now}")
        while True:
            step, loaded = self._step, self.adapters.next_load
            if loaded is not None and loaded <= now and (step is None or loaded <= step.end):
                self.adapters.finish_loads(loaded)
                self._changed(admission=True)
                self._begin(loaded)
            elif step is not None and step.end <= now:
                limit = now if loaded is None else min(now, loaded)
                count = min(self._quiet_steps(step), 1 + (limit - step.end) // step.duration)
                self._complete(step, count)
            else:
                break
        self._now = now

    def _quiet_steps(self, step: Step) -> int:
        """The number of equal steps from this one on, with nothing to report before the last one ends."""
        if step.chunks or step.disturbed or self._stale:
            return 1
        running = [sequence for sequence in step.decoders if sequence.running]
        interval = self.settings.stream_interval
        count = min(
            min(sequence.remaining, interval - sequence.generated % interval)
            if sequence.request.stream
            else sequence.remaining
            for sequence in running
        )
        return count if self._growth(running, count) <= self.cache.available else 1

    def _growth(self, decoders: Iterable[Sequence], steps: int) -> int:
        return sum(self._blocks(sequence.computed + steps) - sequence.blocks for sequence in decoders)

    def _begin(self, now: int) -> None:
        """Begin a step, unless one is under way."""
        if self._step is not None:
            return
        if self._stale:
            self._admit(now)
        for sequence in list(self._running.values()):
            if sequence.running and sequence.decoding:
                self._make_room(sequence)
        settings = self.settings
        decoders: list[Sequence] = []
        chunks: list[tuple[Sequence, int]] = []
        budget = settings.prefill_chunk
        for sequence in self._running.values():
            if sequence.decoding:
                decoders.append(sequence)
            elif budget:
                chunk = min(budget, sequence.target - sequence.computed)
                budget -= chunk
                chunks.append((sequence, chunk))
        if not decoders and not chunks:
            return
        seconds = settings.prefill_time * (settings.prefill_chunk - budget)
        if decoders:
            seconds += settings.decode_time * (1 + settings.decode_growth * (len(decoders) - 1))
        duration = max(1, round(seconds * SECOND * self._slowdown / settings.speed))
        self._step = Step(now + duration, duration, decoders, chunks)

    def _complete(self, step: Step, count: int) -> None:
        """End this step and the `count - 1` quiet ones that follow."""
        at = step.end + (count - 1) * step.duration
        decoders = [sequence for sequence in step.decoders if sequence.running]
        counters = self.counters
        counters.steps += count
        counters.busy_seconds += step.duration * count / SECOND
        counters.step_tokens.observe(len(decoders) + sum(chunk for _, chunk in step.chunks), count)
        counters.inter_token.observe(step.duration / SECOND, len(decoders) * count)
        counters.generation_tokens += len(decoders) * count
        self._fill(decoders, count)
        for sequence in decoders:
            sequence.generated += count
            sequence.last_token_at = at
            self._report(sequence, at)
        for sequence, chunk in step.chunks:
            if sequence.running:
                sequence.computed += chunk
                self._publish(sequence)
                if sequence.decoding:
                    self._first_token(sequence, at)
        self._changed(admission=False)
        self._step = None
        self._begin(at)

    def _fill(self, decoders: list[Sequence], steps: int) -> None:
        """Put `steps` tokens of each request into the cache. If that evicts blocks, do so block by block, in the order
        of single steps: the result depends on the blocks that requests share at that time."""
        size = self.settings.block_tokens
        evicts = self._growth(decoders, steps) > self.cache.free
        while steps and decoders:
            count = min(steps, *(size - sequence.computed % size for sequence in decoders)) if evicts else steps
            for sequence in decoders:
                if missing := self._blocks(sequence.computed + count) - sequence.blocks:
                    self.cache.grow(missing)
                    sequence.blocks += missing
            for sequence in decoders:
                sequence.computed += count
                self._publish(sequence)
            steps -= count

    def _first_token(self, sequence: Sequence, at: int) -> None:
        """A prefill is complete. It gives the first token of the answer, or after a preemption the next one."""
        counters = self.counters
        if sequence.first_token_at < 0:
            sequence.first_token_at = at
            counters.prompt_tokens += sequence.prompt_tokens
            counters.cached_tokens += sequence.cached_tokens
            if sequence.request.output:
                counters.first_token.observe((at - sequence.arrived_at) / SECOND)
        else:
            counters.inter_token.observe((at - sequence.last_token_at) / SECOND)
        if sequence.request.output:
            sequence.generated += 1
            counters.generation_tokens += 1
        sequence.last_token_at = at
        self._report(sequence, at)

    def _report(self, sequence: Sequence, at: int) -> None:
        finished = not sequence.remaining
        request = sequence.request
        if finished or (
            request.stream and (sequence.generated == 1 or not sequence.generated % self.settings.stream_interval)
        ):
            cached = sequence.cached_tokens if request.remote_cached is None else request.remote_cached
            self._progress.append(RequestOutput(request.id, at, sequence.generated, cached, finished))
        if finished:
            self._withdraw(sequence)
            self._finish(sequence, request.finish)

    def _admit(self, now: int) -> None:
        """Admit waiting requests, first come, first served. Requests pass one that waits for its adapter, but not one
        that waits for blocks."""
        self._stale = False
        admitted: list[Sequence] = []
        wanted: set[str] = set()
        for sequence in self._waiting.values():
            if len(self._running) + len(admitted) >= self.settings.slots:
                break
            adapter = sequence.request.adapter
            sequence.deferred = not self.adapters.request(adapter, now, wanted)
            wanted.add(adapter)
            if sequence.deferred:
                continue
            if not self._reserve(sequence):
                break
            self.adapters.use(adapter)
            admitted.append(sequence)
        for sequence in admitted:
            del self._waiting[sequence.request.id]
            self._running[sequence.request.id] = sequence
            sequence.running = True
            if sequence.admitted_at < 0:
                sequence.admitted_at = now

    def _reserve(self, sequence: Sequence) -> bool:
        """Take the blocks of all tokens to compute. Tokens in the prefix cache aren't computed, except the last one,
        from which the next token comes."""
        target = sequence.prompt_tokens + sequence.generated
        block_tokens = self.settings.block_tokens
        hashes = sequence.hashes((target - 1) // block_tokens, block_tokens) if self.cache.caching else []
        found = self.cache.match(hashes)
        blocks = self._blocks(target)
        if not self.cache.allocate(hashes[:found], blocks - found):
            return False
        sequence.target = target
        sequence.computed = found * block_tokens
        sequence.blocks = blocks
        sequence.held = hashes[:found]
        if not sequence.preemptions:
            sequence.cached_tokens = sequence.computed
            self.counters.prefix_queries += target
            self.counters.prefix_hits += sequence.computed
            sequence.computed = max(sequence.computed, sequence.request.transferred)
        return True

    def _make_room(self, sequence: Sequence) -> None:
        """Take the block for the next token. Without space, preempt the request that was admitted last: it returns to
        the front of the queue, and its prompt and answer have to be computed again."""
        missing = self._blocks(sequence.computed + 1) - sequence.blocks
        while missing and not self.cache.grow(missing):
            victim = next(reversed(self._running.values()))
            self._withdraw(victim)
            victim.preemptions += 1
            self.counters.preemptions += 1
            self._waiting[victim.request.id] = victim
            self._waiting.move_to_end(victim.request.id, last=False)
            if victim is sequence:
                return
        sequence.blocks += missing

    def _publish(self, sequence: Sequence) -> None:
        if self.cache.caching:
            have, full = len(sequence.held), sequence.full_blocks(self.settings.block_tokens)
            if full > have:
                fresh = sequence.hashes(full, self.settings.block_tokens)[have:]
                self.cache.publish(fresh)
                sequence.held += fresh

    def _withdraw(self, sequence: Sequence) -> None:
        """Remove it from the batch and free its slot and blocks."""
        del self._running[sequence.request.id]
        sequence.running = False
        self.adapters.leave(sequence.request.adapter)
        self.cache.release(sequence.held, sequence.blocks - len(sequence.held))
        sequence.held = []
        sequence.blocks = 0
        sequence.computed = 0
        if self._step:
            self._step.disturbed = True
        self._changed(admission=True)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        counters = self.counters
        counters.finished[reason] += 1
        self._changed(admission=True)
        if reason is FinishReason.ABORT:
            return
        arrived, admitted = sequence.arrived_at, sequence.admitted_at
        first, last = sequence.first_token_at, sequence.last_token_at
        counters.request_prompt_tokens.observe(sequence.prompt_tokens)
        counters.request_generation_tokens.observe(sequence.generated)
        counters.request_max_tokens.observe(sequence.request.max_tokens)
        counters.end_to_end.observe((last - arrived) / SECOND)
        counters.queue.observe((admitted - arrived) / SECOND)
        counters.inference.observe((last - admitted) / SECOND)
        counters.prefill.observe((first - admitted) / SECOND)
        counters.decode.observe((last - first) / SECOND)
        if sequence.generated > 1:
            counters.per_token.observe((last - first) / SECOND / (sequence.generated - 1))
        counters.request_preemptions.observe(sequence.preemptions)
        known = max(sequence.cached_tokens, sequence.request.transferred)
        counters.prefill_computed.observe(sequence.prompt_tokens - known)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.settings.block_tokens)

    def _changed(self, *, admission: bool) -> None:
        self.revision += 1
        self._stale = self._stale or (admission and bool(self._waiting))

    def __repr__(self) -> str:
        return f"<Engine {len(self._running)} running, {len(self._waiting)} waiting, {self.cache!r}>"


def _adapters(sequences: Iterable[Sequence]) -> tuple[str, ...]:
    return tuple(sorted({sequence.request.adapter for sequence in sequences} - {""}))
