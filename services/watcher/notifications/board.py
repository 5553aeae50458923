"""What notification extractors say of the endpoints: worked out anew when objects or endpoints changed.

An attribute that an extractor makes and that an endpoint doesn't have is denied, not left out: pickers forget the value
that they were told before, instead of letting it age.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from shared.attributes import AttributeKey, AttributeMap, accepted
from shared.datalayer.events import Tally
from shared.datalayer.objects import NotificationExtractor
from shared.model import Endpoint


class Described(Struct, frozen=True):
    """An endpoint's attributes, as a frame sender asks for them."""

    attributes: AttributeMap


class Board:
    """Attributes of all endpoints, by id. `former` are those that were made until now: what nobody makes any more is
    denied too."""

    def __init__(
        self,
        extractors: Sequence[NotificationExtractor],
        tally: Tally,
        former: frozenset[AttributeKey[Any]] = frozenset(),
    ) -> None:
        self._makers = tuple((one, keys) for one in extractors if (keys := one.produces(one.name, one.parameters)))
        self.keys = frozenset(key for _, keys in self._makers for key in keys)
        """The attributes that are made."""
        self._retired = dict.fromkeys(former - self.keys)
        self._tally = tally
        self._values: dict[str, dict[AttributeKey[Any], Any]] = {}
        """By endpoint: every attribute that is made, with None where the endpoint doesn't have it."""

    @property
    def makes(self) -> bool:
        """Whether some extractor makes attributes, or did until now: else nothing is to be sent."""
        return bool(self._makers or self._retired)

    def update(self, endpoints: Iterable[Endpoint]) -> list[str]:
        """These are all endpoints; ids of those of which something else is said than before."""
        before, self._values = self._values, {}
        if self.makes:
            self._values = {one.id: {**self._retired, **self._ask(one)} for one in endpoints}
        return [id for id, values in self._values.items() if values != before.get(id)]

    def described(self, confirmed_at: float) -> Mapping[str, Described]:
        """All attributes as of the time at which they were last known to hold."""
        described: dict[str, Described] = {}
        for id, values in self._values.items():
            attributes = AttributeMap()
            for key, value in values.items():
                if value is None:
                    attributes.deny(key, confirmed_at)
                else:
                    attributes.put(key, value, confirmed_at)
            described[id] = Described(attributes)
        return described

    def of(self, id: str) -> dict[str, Any]:
        """An endpoint's attributes for the debug pages, by wire name."""
        return {key.wire: value for key, value in self._values.get(id, {}).items() if value is not None}

    def _ask(self, endpoint: Endpoint) -> dict[AttributeKey[Any], Any]:
        values: dict[AttributeKey[Any], Any] = {}
        for extractor, keys in self._makers:
            try:
                said = dict(extractor.attributes(endpoint))
            except Exception as error:  # noqa: BLE001 - a plugin's failure is counted, and no other plugin's
                self._tally.failures.record(extractor.name, error, endpoint=endpoint.id)
                said = {}
            for key in said:
                if key not in keys:
                    why = f"{key} isn't among what it declares to produce"
                    self._tally.failures.record(extractor.name, why, endpoint=endpoint.id)
            for key in keys:
                value = said.get(key)
                try:
                    values[key] = None if value is None else accepted(key, value)
                except ValueError as error:
                    self._tally.failures.record(extractor.name, str(error), endpoint=endpoint.id)
                    values[key] = None
        return values

    def __repr__(self) -> str:
        return f"<Board {len(self._values)} endpoints, {sum(len(keys) for _, keys in self._makers)} attributes>"
