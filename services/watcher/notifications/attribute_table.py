"""The attributes that notification extractors derive for endpoints, recomputed when objects or endpoints change.

An attribute that an extractor produces and that an endpoint lacks is denied rather than left out. So pickers forget its
former value instead of letting it age.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct

from shared.attributes import AttributeKey, AttributeMap, accepted
from shared.datalayer.events import EventCounts
from shared.datalayer.objects import NotificationExtractor
from shared.model import Endpoint


class Described(Struct, frozen=True):
    """An endpoint's attributes, as a frame sender reads them."""

    attributes: AttributeMap


class _DescribedEndpoints(Mapping[str, Described]):
    """Attributes that are made when they are read: a frame of changes reads those of a few endpoints."""

    def __init__(self, values: Mapping[str, Mapping[AttributeKey[Any], Any]], confirmed_at: float) -> None:
        self._values = values
        self._confirmed_at = confirmed_at
        self._made: dict[str, Described] = {}

    def __getitem__(self, id: str) -> Described:
        if id not in self._made:
            attributes = AttributeMap()
            for key, value in self._values[id].items():
                if value is None:
                    attributes.deny(key, self._confirmed_at)
                else:
                    attributes.put(key, value, self._confirmed_at)
            self._made[id] = Described(attributes)
        return self._made[id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class AttributeTable:
    """Attributes of all endpoints, by id. `former` are those that a former configuration produced: they are denied."""

    def __init__(
        self,
        extractors: Sequence[NotificationExtractor],
        event_counts: EventCounts,
        former: frozenset[AttributeKey[Any]] = frozenset(),
    ) -> None:
        produced = ((extractor, extractor.produces(extractor.name, extractor.parameters)) for extractor in extractors)
        self._producers = tuple((extractor, keys) for extractor, keys in produced if keys)
        self.keys = frozenset(key for _, keys in self._producers for key in keys)
        """The attributes that are produced."""
        self._retired = dict.fromkeys(former - self.keys)
        self._event_counts = event_counts
        self._values: dict[str, dict[AttributeKey[Any], Any]] = {}
        """By endpoint: each attribute that is produced, None if the endpoint lacks it."""

    @property
    def makes(self) -> bool:
        """Whether an extractor produces attributes, or did in the former configuration."""
        return bool(self._producers or self._retired)

    def update(self, endpoints: Mapping[str, Endpoint], ids: Iterable[str] | None = None) -> list[str]:
        """Recompute the attributes of the endpoints `ids`, by default of all. Returns the ids of those that changed."""
        changed: list[str] = []
        if not self.makes:
            return changed
        for id in endpoints.keys() | self._values.keys() if ids is None else ids:
            if id not in endpoints:
                self._values.pop(id, None)
                continue
            values = {**self._retired, **self._extract(endpoints[id])}
            if values != self._values.get(id):
                self._values[id] = values
                changed.append(id)
        return sorted(changed)

    def described(self, confirmed_at: float) -> Mapping[str, Described]:
        """All attributes, with the time at which they were last known to be current."""
        return _DescribedEndpoints(self._values, confirmed_at)

    def of(self, id: str) -> dict[str, Any]:
        """An endpoint's attributes for the debug pages, by wire name."""
        return {key.wire: value for key, value in self._values.get(id, {}).items() if value is not None}

    def _extract(self, endpoint: Endpoint) -> dict[AttributeKey[Any], Any]:
        values: dict[AttributeKey[Any], Any] = {}
        for extractor, keys in self._producers:

            def fail(error: Exception | str, plugin: str = extractor.name) -> None:
                self._event_counts.failures.record(plugin, error, endpoint=endpoint.id)

            try:
                found = dict(extractor.attributes(endpoint))
            except Exception as error:  # noqa: BLE001 - a plugin's failure is counted and doesn't affect others
                fail(error)
                found = {}
            for key in found.keys() - set(keys):
                fail(f"{key} isn't among what it declares to produce")
            for key in keys:
                value = found.get(key)
                try:
                    values[key] = None if value is None else accepted(key, value)
                except ValueError as error:
                    fail(str(error))
                    values[key] = None
        return values

    def __repr__(self) -> str:
        return f"<AttributeTable {len(self._values)} endpoints, {len(self.keys)} attributes>"
