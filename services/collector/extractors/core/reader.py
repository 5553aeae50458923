"""One engine's pages of one endpoint: what is looked for on them, and what it comes to."""

from collections.abc import Sequence

from services.collector.engines.known import Engine, Specs
from services.collector.extractors.core.readings import (
    Adapters,
    Amount,
    Custom,
    Difference,
    Direct,
    LabelNumbers,
    Number,
    Quantity,
    Share,
    Way,
)
from services.collector.interfaces import Finding
from services.collector.page.selection import Choice, Greatest, Newest, Outcome
from shared.attributes import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    AttributeMap,
)

_THERE = (Outcome.FOUND, Outcome.INVALID)


class EngineReader:
    """Looks for an engine's metrics."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._amounts: list[Amount] = []
        queued, running, total = map(self._amount, (engine.queued, engine.running, engine.all))
        self._requests = list(self._amounts)
        usage, used_blocks, most_blocks = map(self._amount, (engine.kv_usage, engine.used_blocks, engine.max_blocks))
        used_tokens, most_tokens = map(self._amount, (engine.used_tokens, engine.max_tokens))
        block_size = self._amount(engine.cache_block_size, whole=True)
        blocks = self._amount(engine.cache_num_blocks, whole=True)
        self._info, info_size, info_blocks = _info(engine)
        self._adapters = Adapters(Choice([Greatest(spec) for spec in engine.lora])) if engine.lora else None
        self._custom = [Custom(metric) for metric in engine.custom]
        capacities = [most_blocks] if most_blocks else [blocks, info_blocks]
        quantities = (
            Quantity(WAITING_QUEUE_SIZE, [*_way(Direct, queued), *_way(Difference, total, running)]),
            Quantity(RUNNING_REQUESTS_SIZE, _way(Direct, running)),
            Quantity(
                KV_CACHE_USAGE,
                [
                    *_way(Direct, usage),
                    *(way for most in capacities for way in _way(Share, used_blocks, most)),
                    *_way(Share, used_tokens, most_tokens),
                ],
            ),
            Quantity(CACHE_BLOCK_SIZE, [*_way(Direct, block_size), *_way(Direct, info_size)]),
            Quantity(CACHE_NUM_BLOCKS, [*_way(Direct, blocks), *_way(Direct, info_blocks)]),
        )
        self._attributes: list[Quantity | Adapters | Custom] = [one for one in quantities if one.ways]
        self._attributes += [*([self._adapters] if self._adapters else []), *self._custom]
        self.keys = frozenset(key for one in self._attributes for key in one.keys)
        """The attributes that it may find."""
        self._standard: list[Amount | LabelNumbers | Adapters] = [*self._amounts]
        self._standard += [one for one in (self._info, self._adapters) if one is not None]
        customs = [choice for one in self._custom for choice in one.choices]
        self.choices: Sequence[Choice] = [*(one.choice for one in self._standard), *customs]
        """The series that are looked for."""

    def _amount(self, specs: Specs, *, whole: bool = False) -> Amount | None:
        if not specs:
            return None
        self._amounts.append(Amount(_newest(specs), whole=whole))
        return self._amounts[-1]

    def read(self, at: float) -> None:
        """A page that was asked for at `at` (monotonic seconds) has been scanned: take what it said."""
        for one in self._standard:
            one.read()
        for custom in self._custom:
            custom.read(at)

    @property
    def named(self) -> bool:
        """Whether the last page had any of the engine's metrics. The user's own don't count beside others: a page of
        any engine may have them."""
        for one in self._standard or self._custom:  # asked after every page, of which the first nearly always has it
            if one.outcome is not Outcome.ABSENT and one.outcome is not Outcome.UNKNOWN:
                return True
        return False

    @property
    def requests(self) -> float:
        """What share of the engine's request metrics the last page had."""
        found = sum(one.outcome in _THERE for one in self._requests)
        return found / len(self._requests) if found else 0.0

    def store(self, attributes: AttributeMap, at: float) -> bool:
        """Put what the last page said into the attributes; whether any value is new."""
        changed = False
        for one in self._attributes:
            changed |= one.store(attributes, at)
        return changed

    def findings(self) -> list[Finding]:
        return [finding for one in self._attributes for finding in one.findings()]

    def __repr__(self) -> str:
        return f"<EngineReader {self.engine.name} {len(self.choices)} choices>"


def _info(engine: Engine) -> tuple[LabelNumbers | None, Number | None, Number | None]:
    """The series with the cache's dimensions as labels; block size and number of blocks."""
    if not engine.cache_info:
        return None, None, None
    info = LabelNumbers(_newest(engine.cache_info), (engine.cache_block_size_label, engine.cache_num_blocks_label))
    return info, info.numbers[0], info.numbers[1]


def _way(kind: type[Way], *numbers: Number | None) -> list[Way]:
    """The way, if the engine has what it takes."""
    there = [one for one in numbers if one is not None]
    return [kind(*there)] if len(there) == len(numbers) else []


def _newest(specs: Specs) -> Choice:
    return Choice([Newest(spec) for spec in specs])
