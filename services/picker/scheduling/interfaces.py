"""The roles of scheduling plugins. A plugin is plain synchronous code over arrays and doesn't keep the cycle."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, ClassVar, TypeAlias

from msgspec import Struct

from services.picker.request import Headers, Refusal, Request
from services.picker.scheduling.checks import OnFailure
from services.picker.scheduling.cycle import Cycle
from services.picker.scheduling.record import Exchange, Plan, ProfileRun
from services.picker.state.layout import Floats, Rows
from shared.plugin import Plugin, Role

Placement: TypeAlias = Callable[[str | None], None]
"""Tells a producer what became of a request that it has placed: the id of the endpoint that served it, or None when
nobody did."""


def is_bounded(plugin: "Filter | Scorer | Producer") -> bool:
    """Whether the plugin's own class states that its results are within their bounds by construction."""
    return bool(vars(type(plugin)).get("BOUNDED", False))


class Filter(Plugin):
    """Narrows the candidates. If it fails, all candidates pass."""

    ROLES = frozenset({Role.FILTER})
    BOUNDED: ClassVar[bool] = False
    """Whether it returns some of the rows given by construction, so that the profile needn't see to it. A subclass
    has to declare it again; for a class that is a scorer too, it says both."""
    PREFERS: ClassVar[bool] = False
    """Whether the endpoints that it removes can take the request, too, only not as well. Then they are fallbacks where
    fewer are left than the picker names."""

    def filter(self, cycle: Cycle, rows: Rows) -> Rows:
        """The rows that stay, in the order given: an array of rows, not a mask. Empty means that no endpoint can take
        the request."""
        raise NotImplementedError


class Scorer(Plugin):
    """Scores how well each candidate suits the request. If it fails, every candidate scores 0."""

    ROLES = frozenset({Role.SCORER})
    BOUNDED: ClassVar[bool] = False
    """Whether its scores are numbers from 0 to 1 by construction, so that the profile needn't see to it. A subclass
    has to declare it again."""

    def score(self, cycle: Cycle, rows: Rows) -> Floats:
        """Scores, an array of numbers with one a row, which nobody changes; the profile holds them to 0..1.

        Another length, another kind of elements and complex numbers are failures; NaN is one too, which costs the
        endpoint that has it its score."""
        raise NotImplementedError


class PickerParameters(Struct, frozen=True, rename="camel"):
    """How many endpoints to name: the first choice and the fallbacks. Zero or less means 1."""

    max_num_of_endpoints: int = 1

    @property
    def count(self) -> int:
        return max(self.max_num_of_endpoints, 1)


class Picker(Plugin):
    """Chooses among the scored candidates. If it fails, the choice is random."""

    ROLES = frozenset({Role.PICKER})

    def pick(self, cycle: Cycle, rows: Rows, totals: Floats) -> list[int]:
        """The chosen rows, first choice first, then the fallbacks; at least one, and none but candidates. `totals` is
        read-only."""
        raise NotImplementedError


class ProfileHandler(Plugin):
    """Decides which profiles run, and what their picks come to. If it fails, the first profile of the configuration
    decides alone."""

    ROLES = frozenset({Role.PROFILE_HANDLER})

    def next_profiles(self, cycle: Cycle, names: tuple[str, ...], results: dict[str, ProfileRun]) -> tuple[str, ...]:
        """The profiles to run now, given what has run, each once; none when all is done."""
        raise NotImplementedError

    def primary(self, cycle: Cycle, results: dict[str, ProfileRun]) -> str:
        """The profile whose pick is the request's destination."""
        raise NotImplementedError

    def plan(self, cycle: Cycle, results: dict[str, ProfileRun]) -> Plan:
        """The destination, further endpoints that work on the request, and headers that name them."""
        return Plan(self.primary(cycle, results))


class Decider(Plugin):
    """Decides whether a stage of disaggregated serving is used for a request. If it fails, it isn't."""

    ROLES = frozenset({Role.DECIDER})

    def disaggregate(self, cycle: Cycle, row: int | None) -> bool:
        """Whether it is used; `row` is the decode endpoint, None where that isn't picked yet."""
        raise NotImplementedError


class Producer(Plugin):
    """Produces data about a request before it is scheduled, and learns where the request went. If it fails, its
    products are absent for this request, or the request is refused."""

    ROLES = frozenset({Role.DATA_PRODUCER})
    ON_FAILURE: ClassVar[OnFailure] = "skip"
    """Of `prepare`, also when it is late, and of `produce`."""
    BOUNDED: ClassVar[bool] = False
    """Whether its prefix matches are ones that scores can be made of by construction, so that the scheduler needn't see
    to it. A subclass has to declare it again."""

    BUDGET: float = 0.4
    """Seconds that `prepare` may take; an instance may have its own."""

    def prepare(self, request: Request) -> Awaitable[Any] | None:
        """Starts what takes time, such as a call of a tokenizer; None: nothing.

        The request waits for the result up to `BUDGET` seconds, and `produce` finds it in `cycle.prepared[self]`,
        unless the configuration has changed meanwhile. If it fails or is too late, `produce` isn't called for this
        request.
        """
        return None

    def produce(self, cycle: Cycle) -> None:
        """Put its products with `cycle.put`."""

    def picked(self, cycle: Cycle, row: int) -> Placement | None:
        """The request goes to this endpoint. What is returned is called when another endpoint turns out to serve it,
        with the id of that endpoint; and with None when nobody served it: the response was an error, or none came."""
        return None

    def state(self) -> dict[str, Any]:
        """What `/debug/state` shows of it."""
        return {}


class PreAdmissionProcessor(Plugin):
    """Acts on a request before it waits for room. It is active when the document lists it. If it fails, the next one is
    asked."""

    ROLES = frozenset({Role.PRE_ADMISSION})

    def fairness_id(self, headers: Headers) -> str:
        """The flow of a request whose headers name none; empty if it doesn't know."""
        raise NotImplementedError


class Admitter(Plugin):
    """Refuses requests before they are scheduled. It is active when the document lists it. If it fails, the request
    goes on, or is refused."""

    ROLES = frozenset({Role.ADMITTER})
    ON_FAILURE: ClassVar[OnFailure] = "skip"

    def admit(self, cycle: Cycle, rows: Rows) -> Refusal | None:
        """Why the request is refused; None if it isn't. Producers have run, `rows` are the candidates."""
        raise NotImplementedError


class PreRequest(Plugin):
    """Acts on a request whose destination is known. It is active when the document lists it. If it fails, the request
    goes on without it, or is refused."""

    ROLES = frozenset({Role.PRE_REQUEST})
    ON_FAILURE: ClassVar[OnFailure] = "skip"

    def pre_request(self, cycle: Cycle, picked: tuple[int, ...]) -> Mapping[str, str] | Refusal:
        """Headers to set on the request, or why it is refused after all. `picked` are the rows of its destinations,
        the first choice first."""
        raise NotImplementedError


class ResponseHeaderProcessor(Plugin):
    """Acts on the headers of a response, and sets headers for the client. It is active when the document lists it. If
    it fails, the response goes on without its headers."""

    ROLES = frozenset({Role.RESPONSE_HEADERS})

    def response_headers(self, exchange: Exchange, headers: Headers) -> Mapping[str, str]:
        """Headers to set on the response. `headers` are the response's; none if it has more than a picker reads."""
        raise NotImplementedError


class ResponseBodyProcessor(Plugin):
    """Learns how the body of a response comes. It is active when the document lists it, and the picker then requests
    the bodies that it can read from a proxy that shows none. If it fails, nothing else changes."""

    ROLES = frozenset({Role.RESPONSE_BODY})
    EVERY_CHUNK: ClassVar[bool] = False
    """Whether it is called for every chunk, not only at the beginning and the end: each call delays the response."""

    def response_body(self, exchange: Exchange, *, first: bool, last: bool) -> Mapping[tuple[str, str], float] | None:
        """A piece of the body has come: the `first`, or the `last` if it is complete. A body in one piece makes both
        calls; one that breaks off has no last call.

        The last call may return numbers for the proxy's dynamic metadata, by namespace and name."""
        raise NotImplementedError


class CompletionProcessor(Plugin):
    """Learns how requests end. It is active when the document lists it. If it fails, nothing else changes."""

    ROLES = frozenset({Role.COMPLETION})

    def completed(self, exchange: Exchange) -> None:
        """The request is over. Called exactly once for each request for which an endpoint was picked: also if it was
        refused afterwards, failed, or was aborted by its client or by the end of the picker. Its load is released."""
        raise NotImplementedError


class SaturationDetector(Plugin):
    """Says how full the candidates are."""

    ROLES = frozenset({Role.SATURATION_DETECTOR})
    PROMPT: ClassVar[bool] = False
    """Whether the end of a request shows at once; else with the next metrics."""

    def saturation(self, cycle: Cycle, rows: Rows) -> float:
        """0 is empty, 1 and above is saturated; 1 when there are no endpoints."""
        raise NotImplementedError

    def room(self, cycle: Cycle, rows: Rows, ceiling: float, tokens: float) -> float:
        """Requests, of so many tokens each, that fit until the saturation reaches the ceiling: a finite number, 0 when
        the saturation isn't below, and else at least 1, unless requests that it doesn't show yet have used that up.

        Called again after each dispatch. Unless a detector says better, as many fit as there are endpoints.
        """
        return float(len(rows)) if self.saturation(cycle, rows) < ceiling else 0.0

    def places(self, requests: float, tokens: float, average: float) -> float:
        """How much of the room, counted in requests of the average tokens, so many requests with so many tokens
        together take. Unless a detector says better, a request takes one place."""
        return requests

    @property
    def each_one_place(self) -> bool:
        """Whether `places` is the requests, whatever their tokens: then it isn't asked."""
        return type(self).places is SaturationDetector.places
