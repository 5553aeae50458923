"""Runs a configuration's plugins on a cycle: producers, admitters, the profiles that the handler asks for, and
pre-request plugins.

Only producers whose product some plugin reads are run (`LoadedConfig.producers`): what no plugin reads is not computed.
"""

from collections.abc import Iterator, Mapping
from time import perf_counter
from typing import Any

from services.picker.request import Refusal
from services.picker.scheduling.checks import check_headers, checked_refusal, refusal_without
from services.picker.scheduling.cycle import Cycle, OnPluginFailure
from services.picker.scheduling.interfaces import (
    Admitter,
    Filter,
    Picker,
    Placement,
    PreRequest,
    Producer,
    ProfileHandler,
    Scorer,
    is_bounded,
)
from services.picker.scheduling.producers.inflight_load import InFlightLoadProducer
from services.picker.scheduling.profile import Observe, Profile, untimed
from services.picker.scheduling.record import Plan, ProfileRun
from services.picker.scheduling.response_plugins import ResponsePlugins
from shared.config.loaded import LoadedConfig, ProfileSpec
from shared.config.problems import Invalid, Problem
from shared.plugin import Plugin, Role
from shared.plugin_failures import reason_of

_NO_HEADERS: Mapping[str, str] = {}


class Scheduler:
    """The plugins of one configuration, wired."""

    def __init__(self, config: LoadedConfig, plugins: dict[str, Plugin], observe: Observe = untimed) -> None:
        """Wire the instances that `config` names. Raises `Invalid` for a plugin that isn't what its role demands."""
        self._profiles = {spec.name: _profile(spec, plugins, observe) for spec in config.profiles}
        self._names = tuple(self._profiles)
        handler = plugins[config.profile_handler]
        if not isinstance(handler, ProfileHandler):
            raise Invalid([Problem(config.profile_handler, f"{handler!r} implements no ProfileHandler")])
        self._handler = handler
        self.producers = tuple(producer for name in config.producers if isinstance(producer := plugins[name], Producer))
        self._producing = [
            (
                producer,
                products,
                () if is_bounded(producer) else products,
                observe("DataProducer", producer.TYPE, producer.name),
            )
            for producer in self.producers
            for products in [producer.produces(producer.name, producer.parameters)]
        ]
        self.preparing = tuple(each for each in self.producers if type(each).prepare is not Producer.prepare)
        """Producers that may need time before a request is scheduled."""
        self._admitters = tuple(each for each in plugins.values() if isinstance(each, Admitter))
        self._pre_request = tuple(each for each in plugins.values() if isinstance(each, PreRequest))
        self.response_plugins = ResponsePlugins(plugins.values()) or None
        """Those that act on responses and on the end of requests; None if there are none."""
        self._weigher = next(
            (plugin for plugin in plugins.values() if isinstance(plugin, InFlightLoadProducer)),
            InFlightLoadProducer(InFlightLoadProducer.TYPE),
        )
        self.tokens_until_end = self._weigher.until_end
        """Whether a request's tokens are in flight until its end; else until its response begins to come."""

    def produce(self, cycle: Cycle) -> Refusal | None:
        """Run the producers. A refusal if one fails without which no request goes on."""
        started = perf_counter()
        for producer, products, unchecked, observe in self._producing:
            if producer.name in cycle.unprepared:
                continue
            try:
                producer.produce(cycle)
                for key in unchecked:
                    cycle.check(key)
            except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
                cycle.plugin_failed(producer, Role.DATA_PRODUCER, error)
                for key in products:
                    cycle.drop(key)
                if producer.ON_FAILURE == "refuse":
                    return refusal_without(producer, Role.DATA_PRODUCER)
            ended = perf_counter()
            observe(ended - started)
            started = ended
        return None

    def admit(self, cycle: Cycle) -> Refusal | None:
        """The first refusal of an admitter, in the order of the document; None if all admit the request."""
        for admitter in self._admitters:
            try:
                refusal = admitter.admit(cycle, cycle.candidates)
                if refusal is not None:
                    return checked_refusal(refusal)
            except Exception as error:  # noqa: BLE001 - a plugin's failure is noted, and costs only the plugin's part
                cycle.plugin_failed(admitter, Role.ADMITTER, error)
                if admitter.ON_FAILURE == "refuse":
                    return refusal_without(admitter, Role.ADMITTER)
        return None

    def run(self, cycle: Cycle) -> tuple[dict[str, ProfileRun], Plan]:
        """(each profile's run, what they come to). No runs where the handler refuses the request."""
        runs: dict[str, ProfileRun] = {}
        cycle.runs = runs
        handler = self._handler
        try:
            while names := handler.next_profiles(cycle, self._names, runs):
                for name in names:
                    if name in runs:
                        raise ValueError(f"profile {name!r} has run already")
                    runs[name] = self._profiles[name].run(cycle, cycle.candidates)
            if not runs and cycle.refusal is not None:
                return runs, Plan("")
            plan = handler.plan(cycle, runs)
            if plan.primary not in runs:
                raise ValueError(f"the primary profile {plan.primary!r} hasn't run")
            for role, wanted in plan.roles.items():
                if wanted.profile not in runs or not runs[wanted.profile].picked:
                    raise ValueError(f"role {role!r}: the profile {wanted.profile!r} has picked nothing")
            if plan.set_headers:
                check_headers(plan.set_headers)
        except Exception as error:  # noqa: BLE001 - as above: the first profile decides alone
            cycle.plugin_failed(handler, Role.PROFILE_HANDLER, error)
            primary = self._names[0]
            if primary not in runs:
                runs[primary] = self._profiles[primary].run(cycle, cycle.candidates)
            plan = Plan(primary)
        return runs, plan

    def possible_first(self, cycle: Cycle, run: ProfileRun) -> Iterator[tuple[int, ...]]:
        """The rows that a profile's picker could name first, by chance, as far as they are known after each trial."""
        return self._profiles[run.profile].possible_first(cycle, run)

    def pre_request(self, cycle: Cycle, picked: tuple[int, ...]) -> Mapping[str, str] | Refusal:
        """Headers that pre-request plugins set, later ones over earlier ones; or the first refusal."""
        if not self._pre_request:
            return _NO_HEADERS
        headers: dict[str, str] = {}
        for plugin in self._pre_request:
            try:
                result = plugin.pre_request(cycle, picked)
                if isinstance(result, Refusal):
                    return checked_refusal(result)
                check_headers(result)
                headers.update(result)
            except Exception as error:  # noqa: BLE001 - as above
                cycle.plugin_failed(plugin, Role.PRE_REQUEST, error)
                if plugin.ON_FAILURE == "refuse":
                    return refusal_without(plugin, Role.PRE_REQUEST)
        return headers

    def picked(self, cycle: Cycle, row: int) -> tuple[Placement, ...]:
        """Tell the producers where the request goes. Returns what to call when another endpoint serves it, or none
        does."""
        placements: list[Placement] = []
        for producer in self.producers:
            try:
                if (placement := producer.picked(cycle, row)) is not None:
                    placements.append(_guarded(placement, producer.name, cycle.failed, cycle.request.id))
            except Exception as error:  # noqa: BLE001 - as above: it hasn't learnt of this one
                cycle.plugin_failed(producer, Role.DATA_PRODUCER, error)
        return tuple(placements)

    def computed(self, cycle: Cycle, row: int) -> tuple[Placement, ...]:
        """Tell the producers that this endpoint computes the prompt for the one that serves. Returns what to call when
        no endpoint serves. The placement stays, whichever endpoint serves."""
        return tuple(map(_withdrawn, self.picked(cycle, row)))

    def tokens(self, cycle: Cycle, row: int) -> int:
        """What the request is charged with on this endpoint."""
        try:
            return self._weigher.tokens(cycle, row)
        except Exception as error:  # noqa: BLE001 - as above: the whole prompt is charged
            cycle.plugin_failed(self._weigher, Role.DATA_PRODUCER, error)
            return cycle.prompt_tokens

    def state(self) -> dict[str, object]:
        return {
            "profiles": [repr(profile) for profile in self._profiles.values()],
            "handler": self._handler.name,
            "producers": {producer.name: _state(producer) for producer in self.producers},
        }

    def __repr__(self) -> str:
        return f"<Scheduler {', '.join(map(repr, self._profiles.values()))}>"


def _state(producer: Producer) -> dict[str, Any]:
    try:
        return producer.state()
    except Exception as error:  # noqa: BLE001 - a plugin's failure costs no page
        return {"error": reason_of(error)}


def _guarded(placement: Placement, producer: str, failed: OnPluginFailure, request_id: str) -> Placement:
    """A placement that never raises: a producer that fails hasn't learnt who served."""

    def served(endpoint: str | None) -> None:
        try:
            placement(endpoint)
        except Exception as error:  # noqa: BLE001 - a plugin's failure is counted, and costs nothing else
            failed(producer, error, request_id)

    return served


def _withdrawn(placement: Placement) -> Placement:
    """A placement that is called only when nobody serves the request."""

    def served(endpoint: str | None) -> None:
        if endpoint is None:
            placement(None)

    return served


def _profile(spec: ProfileSpec, plugins: dict[str, Plugin], observe: Observe) -> Profile:
    members = [(plugins[member.plugin.name], member.weight) for member in spec.members if member.plugin.name in plugins]
    return Profile(
        spec.name,
        tuple(plugin for plugin, _ in members if isinstance(plugin, Filter)),
        tuple((plugin, weight) for plugin, weight in members if isinstance(plugin, Scorer)),
        next(plugin for plugin, _ in members if isinstance(plugin, Picker)),
        observe,
    )
