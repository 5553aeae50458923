"""Attributes of endpoints: typed keys, each with the plugin that produces it.

A missing attribute is absent, never zero; each reader decides what that means. On the bus and in the picker's columns,
an attribute goes by its `wire` name, `<name>/<producer>`, as in the Go original.

Attributes of numbers have bounds, and values outside are refused: a value wrong by a hundred orders of magnitude would
spoil every sum and mean.
"""

import copy
import math
from collections.abc import ItemsView, Iterable
from dataclasses import dataclass
from functools import cached_property
from threading import RLock
from typing import Any, ClassVar, Generic, TypeGuard, TypeVar
from weakref import WeakValueDictionary

import msgspec
from msgspec import Struct

T = TypeVar("T")

CORE = "core-metrics-extractor"


class Bounds(Struct, frozen=True):
    """The range of an attribute's values, both ends included. NaN is outside of every range."""

    minimum: float
    maximum: float

    def __contains__(self, value: float) -> bool:
        return self.minimum <= value <= self.maximum

    def __str__(self) -> str:
        return f"{self.minimum:g} to {self.maximum:g}"


ANY = Bounds(-(2.0**64), 2.0**64)
"""The default: numbers of 64-bit counters, including nanoseconds. Squares and sums of thousands of them are finite."""


MAX_WIRE_NAME = 256
"""Characters of an attribute's wire name: a metric's name has some fifty, a plugin's fewer."""


@dataclass(frozen=True, eq=False, init=False)
class AttributeKey(Generic[T]):
    """Names an attribute. `kind` is `float` (a column of numbers) or the type of the value. Raises ValueError for a
    wire name of more than `MAX_WIRE_NAME` characters, and for other `bounds` than the attribute has; without bounds,
    the key is the attribute as it is.

    Equal keys are one object while anybody holds it, so look-ups, which happen for every attribute of every page,
    compare no strings.
    """

    name: str
    producer: str
    kind: type[T]
    bounds: Bounds
    """Of a number."""

    _known: ClassVar[WeakValueDictionary[tuple[str, str, Any], Any]] = WeakValueDictionary()
    _numbers: ClassVar[WeakValueDictionary[str, Any]] = WeakValueDictionary()
    """The attributes of numbers by wire name."""

    _making: ClassVar[Any] = RLock()
    """Configurations are read in a thread, while the event loop reads frames."""

    def __new__(cls, name: str, producer: str, kind: type[T], bounds: Bounds | None = None) -> "AttributeKey[T]":
        key: AttributeKey[T] | None = cls._known.get((name, producer, kind))
        if key is None:
            with cls._making:
                key = cls._known.get((name, producer, kind)) or cls._make(name, producer, kind)
        if bounds is not None and bounds != key.bounds:
            if key.bounds is not ANY:
                raise ValueError(f"{key} is from {key.bounds}, not from {bounds}")
            object.__setattr__(key, "bounds", bounds)  # new, or somebody read it before who makes it was loaded
        return key

    @classmethod
    def _make(cls, name: str, producer: str, kind: type[T]) -> "AttributeKey[T]":
        if (length := len(name) + len(producer) + 1) > MAX_WIRE_NAME:
            raise ValueError(
                f"an attribute's name of {length} characters, with that of its plugin; {MAX_WIRE_NAME} are allowed"
            )
        key: AttributeKey[T] = super().__new__(cls)
        for field, value in (("name", name), ("producer", producer), ("kind", kind), ("bounds", ANY)):
            object.__setattr__(key, field, value)
        cls._known[name, producer, kind] = key
        if kind is float:
            cls._numbers[key.wire] = key
        return key

    @cached_property
    def wire(self) -> str:
        return f"{self.name}/{self.producer}"

    def __str__(self) -> str:
        return self.wire


def bounds_of(wire: str) -> Bounds:
    """The bounds of the attribute of numbers with this wire name, as far as anybody here has its key."""
    key: AttributeKey[float] | None = AttributeKey._numbers.get(wire)
    return ANY if key is None else key.bounds


_REQUESTS = Bounds(0.0, 1e9)
"""Of requests that a server holds: each takes kilobytes of its memory."""
_SHARE = Bounds(0.0, 1.0)

WAITING_QUEUE_SIZE = AttributeKey("WaitingQueueSize", CORE, float, _REQUESTS)
"""Requests that the model server has accepted and not started."""
RUNNING_REQUESTS_SIZE = AttributeKey("RunningRequestsSize", CORE, float, _REQUESTS)
"""Requests in the model server's batch."""
KV_CACHE_USAGE = AttributeKey("KVCacheUsagePercent", CORE, float, Bounds(0.0, 2.0))
"""Share of the KV cache in use, 0 to 1; the name is the Go original's. Up to 2, because usage and size may be counted
at different moments; a percentage is refused."""
CACHE_BLOCK_SIZE = AttributeKey("CacheBlockSize", CORE, float, Bounds(0.0, 65_536.0))
"""Tokens in a KV cache block: 1 to 128, thousands in models with Mamba layers. 0 says nothing."""
CACHE_NUM_BLOCKS = AttributeKey("CacheNumBlocks", CORE, float, Bounds(0.0, 1e9))
"""KV cache blocks of the server: millions on eight GPUs, where a block is a token. 0 says nothing."""
MAX_ACTIVE_MODELS = AttributeKey("MaxActiveModels", CORE, float, Bounds(0.0, 1e6))
"""LoRA adapters that fit on the server at a time: vLLM's --max-loras, rarely above a hundred."""
ACTIVE_MODELS: AttributeKey[tuple[str, ...]] = AttributeKey("ActiveModels", CORE, tuple)
"""LoRA adapters that are loaded."""
WAITING_MODELS: AttributeKey[tuple[str, ...]] = AttributeKey("WaitingModels", CORE, tuple)
"""LoRA adapters that requests wait for."""

SERVED_MODELS: AttributeKey[tuple[str, ...]] = AttributeKey("/v1/models", "models-data-extractor", tuple)
"""Models that the server answers for, by the names that requests give: base models and LoRA adapters."""
GPU_UTILIZATION = AttributeKey("GPUUtilization", "dcgm-extractor", float, _SHARE)
"""Share of time in which the busiest of the endpoint's GPUs computed something, 0 to 1."""
REACHABLE = AttributeKey("Reachable", "collector", float, _SHARE)
"""1 after a successful scrape of the server; 0 after so many refused or late ones in a row that it seems down."""

STANDARD_KEYS: tuple[AttributeKey[Any], ...] = (
    WAITING_QUEUE_SIZE,
    RUNNING_REQUESTS_SIZE,
    KV_CACHE_USAGE,
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    MAX_ACTIVE_MODELS,
    ACTIVE_MODELS,
    WAITING_MODELS,
)


ALWAYS = math.inf
"""When a value was seen that follows from the endpoint itself, its labels say: it is as new as the endpoint is."""


class Sample(Struct, frozen=True):
    """An attribute's value and when it was seen, in seconds of the local monotonic clock."""

    value: Any
    """None where it is known that the endpoint doesn't have the attribute."""
    at: float

    def age(self, now: float) -> float:
        """Seconds since it was seen; 0 for what holds `ALWAYS`."""
        return max(0.0, now - self.at)


MAX_VALUE = 16 * 2**10
"""Bytes of an encoded value that is neither a number nor a list of strings."""
MAX_NAMES, MAX_LIST = 10_000, 128 * 2**10
"""Length of a list of strings, which is decoded quickly, and its bytes: a thousand names of 128 characters."""
NAME = 64
"""Bytes of a list of strings that count as a name, where its names are longer."""
_texts = msgspec.msgpack.Decoder(list[str])


def oversized(encoded: bytes) -> str:
    """Why a value as it is in a message is too much; empty where it isn't."""
    if len(encoded) <= MAX_VALUE:
        return ""
    if (names := entries(encoded)) > MAX_NAMES:
        return f"{names} values; {MAX_NAMES} are allowed"
    if len(encoded) > MAX_LIST:
        return f"{len(encoded)} bytes; {MAX_LIST} are allowed for a list of texts, {MAX_VALUE} for anything else"
    try:
        _texts.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return f"{len(encoded)} bytes; {MAX_VALUE} are allowed for what is no list of texts"
    return ""


def extent(encoded: bytes) -> int:
    """How much a value, as it is in a message, is to read and keep: the names of a list, each `NAME` bytes on average,
    and 1 at least; the bytes of anything else; nothing where there is none."""
    if encoded == b"\xc0":
        return 0
    try:
        return max(1, len(_texts.decode(encoded)), len(encoded) // NAME)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return len(encoded)


def entries(encoded: bytes) -> int:
    """How many values an array, or keys a map, has in MessagePack, by its first bytes; 0 for anything else."""
    match encoded[0]:
        case few if 0x80 <= few <= 0x9F:
            return few & 0x0F
        case 0xDC | 0xDE:
            return int.from_bytes(encoded[1:3])
        case 0xDD | 0xDF:
            return int.from_bytes(encoded[1:5])
        case _:
            return 0


def fault(key: AttributeKey[Any], value: object) -> str:
    """Why the value can't be the attribute's; empty if it can. One string would break a column of numbers, and one
    value that can't be encoded a whole frame."""
    if key.kind is float:
        if not _is_number(value):
            return f"{key} is {_shown(value)}; a finite number is expected"
        return "" if value in key.bounds else f"{key} is {_shown(value)}; {key.bounds} is expected"
    if not isinstance(value, key.kind):
        return f"{key} is {_shown(value)}; a {key.kind.__name__} is expected"
    try:
        encoded = msgspec.msgpack.encode(value)
    except Exception as error:  # noqa: BLE001 - whatever a plugin's object does when it is encoded, it can't be sent
        return f"{key} is {_shown(value)}, which no message can carry: {type(error).__name__}: {error}"
    return f"{key} has {reason}" if (reason := oversized(encoded)) else ""


def accepted(key: AttributeKey[T], value: T) -> T:
    """The value, copied if the plugin could change it. Raises ValueError with its fault."""
    if reason := fault(key, value):
        raise ValueError(reason)
    if key.kind is float or _is_immutable(value):
        return value
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise ValueError(f"{key} is {_shown(value)}, which can't be copied: {type(error).__name__}: {error}") from error


def _is_number(value: object) -> TypeGuard[float]:
    """Whether it is one; infinity is."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value == value


_ATOMS = frozenset({str, bytes, int, float, bool, type(None)})


def _is_immutable(value: object) -> bool:
    """Whether nobody can change it; at a guess no."""
    if type(value) in _ATOMS:
        return True
    if type(value) is tuple:
        return _ATOMS.issuperset(map(type, value)) or all(map(_is_immutable, value))  # nearly always texts
    if isinstance(value, Struct) and value.__struct_config__.frozen:
        return all(_is_immutable(getattr(value, name)) for name in value.__struct_fields__)
    return False


def _is_time(at: object) -> bool:
    return isinstance(at, (int, float)) and at == at


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - a plugin's object
        return f"a {type(value).__name__}"
    return text if len(text) <= 100 else f"{text[:100]}…"


class AttributeMap:
    """The attributes of one endpoint: the newest sample of each key.

    It belongs to the event loop and has no lock: writes from other threads aren't safe. A plugin that works in a thread
    hands its result to the loop (`loop.call_soon_threadsafe`, or what `asyncio.to_thread` returns) and writes there.

    >>> attributes = AttributeMap()
    >>> attributes.put(WAITING_QUEUE_SIZE, 3.0, at=10.0)
    True
    >>> attributes.get(WAITING_QUEUE_SIZE)
    3.0
    """

    __slots__ = ("_changed", "_refused", "_samples")

    def __init__(self) -> None:
        self._samples: dict[AttributeKey[Any], Sample] = {}
        self._changed: set[AttributeKey[Any]] = set()
        self._refused: dict[AttributeKey[Any], tuple[float, Bounds]] = {}

    def put(self, key: AttributeKey[T], value: T, at: float) -> bool:
        """Store the value, seen at `at` (monotonic seconds, or `ALWAYS`). Returns whether it differs from the last one.
        Raises ValueError for a value of another kind, and for an invalid time.

        A number outside the key's bounds is refused, see `take_refused`, and the last value ages. A mutable value is
        copied.
        """
        changed = False
        if key.kind is float:
            bounds = key.bounds
            if type(value) is not float or not bounds.minimum <= value <= bounds.maximum:  # type: ignore[operator]  # a float
                if _is_number(value) and value not in bounds:
                    self.refuse(key, value)
                    return False
                accepted(key, value)
        else:
            before = self._samples.get(key)
            if before is None or before.value is None or before.value != value:
                value = accepted(key, value)
            elif before.value is not value:
                value = before.value
            elif not _is_immutable(value):
                value = accepted(key, value)
                self._changed.add(key)  # it is what `get` gave, and may have been changed in place
                changed = True
        if (type(at) is not float or at != at) and not _is_time(at):
            raise ValueError(f"{key} was seen at {_shown(at)}; monotonic seconds are expected")
        return self._set(key, value, at) or changed

    def deny(self, key: AttributeKey[Any], at: float) -> bool:
        """Store that the endpoint doesn't have the attribute; returns whether that is new. Readers then forget the last
        value instead of letting it age."""
        return self._set(key, None, at)

    def _set(self, key: AttributeKey[Any], value: Any, at: float) -> bool:
        before = self._samples.get(key)
        changed = before is None or before.value != value
        if changed:
            self._changed.add(key)
        self._samples[key] = Sample(value, at)
        return changed

    def refuse(self, key: AttributeKey[Any], value: float, bounds: Bounds | None = None) -> None:
        """The endpoint was said to have this number, which is beyond the bounds; none are the key's."""
        try:
            number = float(value)
        except OverflowError:  # a whole number beyond every float
            number = math.copysign(math.inf, value > 0 or -1)
        self._refused[key] = number, bounds or key.bounds

    def take_refused(self) -> dict[AttributeKey[Any], tuple[float, Bounds]]:
        """The numbers that weren't taken since this was last asked, the last of each key, and what they are beyond."""
        refused = self._refused
        if refused:
            self._refused = {}
        return refused

    def take_changed(self) -> set[AttributeKey[Any]]:
        """The keys whose values have changed since they were last taken."""
        changed = self._changed
        if changed:
            self._changed = set()
        return changed

    def get(self, key: AttributeKey[T]) -> T | None:
        sample = self._samples.get(key)
        return None if sample is None else sample.value

    def sample(self, key: AttributeKey[Any]) -> Sample | None:
        return self._samples.get(key)

    def drop(self, key: AttributeKey[Any]) -> None:
        """Forget the attribute without telling readers, unlike `deny`."""
        self._samples.pop(key, None)

    def items(self) -> ItemsView[AttributeKey[Any], Sample]:
        """The newest sample of each key. A view: not to be walked over while something is put."""
        return self._samples.items()

    def among(self, keys: Iterable[AttributeKey[Any]]) -> list[tuple[AttributeKey[Any], Sample]]:
        """The newest samples of those of the keys that there are."""
        samples = self._samples
        return [(key, samples[key]) for key in keys if key in samples]

    def __len__(self) -> int:
        return len(self._samples)

    def __repr__(self) -> str:
        return f"<AttributeMap {', '.join(f'{key.name}={sample.value}' for key, sample in self._samples.items())}>"
