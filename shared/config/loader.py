"""Loads an EndpointPickerConfig: from its text to a `LoadedConfig`, or to every problem.

The steps add their problems to one list: read the document strictly; move deprecated fields; create the plugin specs;
resolve references; inject defaults in the Go original's order (profiles and handler, flow control, parsers, saturation
detector, data layer, producers). Defaults go by a plugin's type, and ties by the document's order.
"""

import re
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from typing import Any

from msgspec import UNSET

from shared.config.decode import MISSING, Expressions, decode, fields_given
from shared.config.defaults import DEFAULT_DOCUMENT, DEFAULT_PARSERS, DEFAULT_PROFILE, DETECTOR, Injector, revision
from shared.config.demand import check as check_demand
from shared.config.gates import FLOW_CONTROL, read_gates
from shared.config.inputs import check_writers, resolve
from shared.config.loaded import LoadedConfig, PluginSpec, ProfileMember, ProfileSpec
from shared.config.names import Names
from shared.config.order import in_order
from shared.config.originals import absent
from shared.config.problems import Invalid, Problems, join, show
from shared.config.schema import (
    API_VERSIONS,
    BOUNDS,
    KIND,
    Bounds,
    DataLayerSection,
    Document,
    FlowControlSection,
    PluginEntry,
    ProfileEntry,
    Ref,
)
from shared.config.sections import check_flow_control, check_replicas, read_sources
from shared.config.yaml import parse_documents
from shared.plugin import Registry, Role, Stability


def load(
    text: str,
    registry: Registry,
    origin: str = "",
    *,
    allow_experimental: bool = False,
    bounds: Bounds = BOUNDS,
) -> LoadedConfig:
    """Load a configuration; an empty text is the built-in default. Raises `Invalid` with every problem."""
    form = Problems()
    text = text if text.strip() else DEFAULT_DOCUMENT
    documents = parse_documents(text, form, bounds.values)
    if not documents:
        if not form.errors:
            form.error("", f"nothing but comments; an {KIND} is expected")
        raise Invalid(form.errors, origin)
    if len(documents) > 1:
        form.error("", f"{len(documents)} YAML documents; one is expected")
    raw = documents[0]
    if _bound_lists(raw, "", form, bounds.entries):
        raise Invalid(form.errors, origin)
    document = decode(raw, Document, "", form, lenient=True)
    if document is MISSING:
        raise Invalid(form.errors, origin)
    meaning = Problems()
    loaded = _Loader(document, registry, meaning, allow_experimental, form).load(origin, text)
    bad = {problem.path for problem in form.errors}
    form.errors += [problem for problem in meaning.errors if bad.isdisjoint(_path_prefixes(problem.path))]
    form.raise_if_any(origin)
    return loaded


def _bound_lists(raw: object, path: str, problems: Problems, limit: int) -> bool:
    """Note lists that are too long, those of plugins' own parameters aside; whether there is one."""
    if isinstance(raw, Mapping):
        inner = [(join(path, str(key)), value) for key, value in raw.items() if key != "parameters"]
    elif isinstance(raw, list) and len(raw) <= limit:
        inner = [(join(path, index), value) for index, value in enumerate(raw)]
    elif isinstance(raw, list):
        problems.error(path, f"{len(raw)} entries; at most {limit} are allowed")
        return True
    else:
        return False
    return sum(_bound_lists(value, at, problems, limit) for at, value in inner) > 0


def _path_prefixes(path: str) -> Iterator[str]:
    """The path, and every path that it may lie inside."""
    yield path
    for end, char in enumerate(path):
        if end and char in ".[":
            yield path[:end]


class _Loader:
    def __init__(
        self, document: Document, registry: Registry, problems: Problems, allow_experimental: bool, form: Problems
    ) -> None:
        self._document = document
        self._registry = registry
        self._problems = problems
        self._allow_experimental = allow_experimental
        bad = [problem.path for problem in form.errors]
        self._names = Names(
            registry,
            problems,
            nameless=any(re.fullmatch(r"plugins(\[\d+\])?", path) for path in bad),
            incomplete=not all({"plugins", "dataLayer", "data"}.isdisjoint(_path_prefixes(path)) for path in bad),
        )
        self._plugins = self._names.plugins
        self._givers: dict[tuple[str, str], PluginSpec] = {}
        """Sources by what they give."""
        self._expressions = Expressions()

    def load(self, origin: str, text: str) -> LoadedConfig:
        """The loaded configuration; only valid if there were no problems."""
        self._header()
        gates = read_gates(self._document.feature_gates, "featureGates", self._problems)
        for index, entry in enumerate(self._document.plugins):
            self._plugin(entry, f"plugins[{index}]")
        self._references()
        flow_control = self._flow_control(gates[FLOW_CONTROL])
        data_layer, key = self._data_layer()
        given_profiles = self._profiles()
        added = Problems()
        injector = Injector(self._plugins, self._registry, added)
        given_parsers = self._parsers(injector)
        detector = self._detector(flow_control)
        given_sources = read_sources(data_layer, key, self._names, self._problems)
        discovery = None
        if data_layer.discovery is not None:
            discovery = self._names.resolve(
                data_layer.discovery.plugin_ref, Role.DISCOVERY, f"{key}.discovery.pluginRef"
            )
        check_replicas(data_layer, key, self._names, self._problems)
        profiles = injector.profiles(given_profiles)
        handler = injector.profile_handler(profiles)
        if gates[FLOW_CONTROL]:
            flow_control = injector.flow_control(flow_control or FlowControlSection())
        parsers = given_parsers or injector.parsers()
        detector = detector or injector.saturation_detector()
        sources = injector.sources(given_sources, data_layer.inject_defaults)
        check_writers(self._plugins, sources, added)
        injector.producers(sources)
        inputs = resolve(self._plugins, sources, added)
        producers = in_order(self._plugins, profiles, inputs, added)
        check_demand(self._plugins, sources, inputs, data_layer.stale_metrics, added)
        self._problems.warnings += added.warnings
        if not self._names.incomplete:
            self._problems.errors += added.errors
        return LoadedConfig(
            origin=origin,
            revision=revision(text),
            text=text,
            plugins=self._plugins,
            profiles=profiles,
            profile_handler=handler,
            parsers=parsers,
            saturation_detector=detector,
            sources=sources,
            producers=producers,
            inputs=inputs,
            discovery=discovery,
            stale_metrics=data_layer.stale_metrics,
            flow_control=flow_control if gates[FLOW_CONTROL] else None,
            gates=gates,
            warnings=tuple(self._problems.warnings),
        )

    def _header(self) -> None:
        for failure in self._registry.failures:
            self._problems.warn("plugins", f"some plugin types may be missing: {failure}")
        for path, given, allowed in (
            ("kind", self._document.kind, (KIND,)),
            ("apiVersion", self._document.api_version, API_VERSIONS),
        ):
            if given not in allowed:
                choice = " or ".join(map(show, allowed))
                what = show(given) if given else "required, and missing"
                self._problems.error(path, f"{what}; {choice} is expected")
        if self._document.api_version in API_VERSIONS[1:]:
            self._problems.warn("apiVersion", f"{self._document.api_version} is deprecated; write {API_VERSIONS[0]}")

    def _plugin(self, entry: PluginEntry, path: str) -> None:
        name = entry.name or entry.type
        taken = self._names.known(name)
        if taken and name:
            self._problems.error(join(path, "name"), f"{show(name)} is the name of an earlier plugin; names are unique")
        spec = self._spec(entry, name, path)
        if spec is not None and not taken:
            self._check_topic(spec)
            self._plugins[name] = spec
            return
        self._names.incomplete = True
        if not taken:
            self._names.broken.add(name)

    def _spec(self, entry: PluginEntry, name: str, path: str) -> PluginSpec | None:
        at = join(path, "type")
        if not entry.type:
            self._problems.error(at, "required, and missing")
            return None
        kind = self._registry.find(entry.type)
        if kind is None:
            unknown = f"is no plugin type that is installed{self._problems.hint(entry.type, self._registry.names())}"
            broken = "".join(f"; {failure}" for failure in self._registry.failures)
            self._problems.error(at, f"{show(entry.type)} {absent(entry.type) or unknown}{broken}")
            return None
        if entry.type != kind.TYPE:
            self._problems.warn(at, f"{entry.type} is deprecated; write {kind.TYPE}")
        refused = kind.STABILITY is Stability.ALPHA and not self._allow_experimental
        if refused:
            self._problems.error(
                at, f"{show(entry.type)} is experimental (alpha); allow it with --allow-experimental-plugins"
            )
        at = join(path, "parameters")
        parameters = decode(
            entry.parameters or {},
            kind.Parameters,
            at,
            self._problems,
            ignore_case=True,
            expressions=self._expressions,
        )
        if refused or parameters is MISSING:
            return None
        for message in kind.deprecations(parameters):
            self._problems.warn(at, message)
        spec = PluginSpec(name, kind, parameters, path, fields_given(entry.parameters or {}, kind.Parameters))
        try:
            _ = spec.produces
        except ValueError as error:  # an attribute that can't be
            self._problems.error(path, str(error))
            return None
        return spec

    def _check_topic(self, spec: PluginSpec) -> None:
        """What a source brings is brought once, however many extractors read it."""
        if not spec.topic or Role.DATA_SOURCE not in spec.kind.ROLES:
            return
        other = self._givers.setdefault((spec.kind.OUTPUT, spec.topic), spec)
        if other is not spec:
            self._problems.error(
                join(spec.path, "parameters"),
                f"{show(other.name)} gives {spec.topic} already; list all extractors of it under one source",
            )

    def _references(self) -> None:
        """Plugins that other plugins' parameters name."""
        called: dict[str, list[str]] = {}
        for spec in self._plugins.values():
            for reference in spec.references:
                at = f"{spec.path}.parameters.{reference.parameter}"
                if (name := self._names.resolve(reference.name, reference.role, at)) is not None:
                    called.setdefault(spec.name, []).append(name)
        try:
            TopologicalSorter(called).prepare()
        except CycleError as error:
            circle = error.args[1][::-1]
            self._problems.error(self._plugins[circle[0]].path, f"plugins call each other: {' → '.join(circle)}")
        for spec in self._plugins.values():
            for wanted in spec.consumes:
                name, key = wanted.producer, wanted.key
                if not name or key is None:
                    continue
                path = f"{spec.path}.parameters.{wanted.parameter}"
                known = self._plugins.get(name)
                kind = self._registry.find(name)
                made = known.produces if known is not None else kind.PRODUCES if kind is not None else ()
                if name in self._names.broken or key in made:
                    continue
                if known is not None:
                    self._problems.error(
                        path, f"{show(name)} is of type {known.kind.TYPE}, which doesn't produce {key.name}"
                    )
                else:
                    self._names.find(name, path)

    def _profiles(self) -> tuple[ProfileSpec, ...]:
        profiles: list[ProfileSpec] = []
        for index, entry in enumerate(self._document.scheduling_profiles):
            path = f"schedulingProfiles[{index}]"
            if not entry.name:
                self._problems.error(join(path, "name"), "required, and missing")
            elif any(profile.name == entry.name for profile in profiles):
                self._problems.error(join(path, "name"), f"{show(entry.name)} is the name of an earlier profile")
            profile = ProfileSpec(entry.name, self._members(entry, path))
            pickers = profile.having(Role.PICKER)
            if len(pickers) > 1:
                names = " and ".join(show(member.plugin.name) for member in pickers)
                self._problems.error(join(path, "plugins"), f"{names} are pickers; a profile has one")
            profiles.append(profile)
        self._check_handlers(tuple(profile.name for profile in profiles) or (DEFAULT_PROFILE,))
        return tuple(profiles)

    def _members(self, entry: ProfileEntry, path: str) -> tuple[ProfileMember, ...]:
        members: list[ProfileMember] = []
        listed: set[str] = set()
        for position, ref in enumerate(entry.plugins):
            at = f"{path}.plugins[{position}].pluginRef"
            if (spec := self._names.find(ref.plugin_ref, at)) is not None:
                if spec.name in listed and Role.PICKER not in spec.kind.ROLES:
                    self._problems.warn(at, f"{show(ref.plugin_ref)} is listed twice, and counts twice")
                listed.add(spec.name)
                weight = 1.0 if ref.weight is None else ref.weight
                if weight < 0 and Role.SCORER in spec.kind.ROLES:
                    self._problems.warn(
                        f"{path}.plugins[{position}].weight",
                        f"{weight:g} is negative: the endpoints that {show(ref.plugin_ref)} scores best are avoided",
                    )
                members.append(ProfileMember(spec, weight))
        return tuple(members)

    def _check_handlers(self, profiles: tuple[str, ...]) -> None:
        handlers = [spec for spec in self._plugins.values() if Role.PROFILE_HANDLER in spec.kind.ROLES]
        if len(handlers) > 1:
            names = " and ".join(show(spec.name) for spec in handlers)
            self._problems.error("plugins", f"{names} are profile handlers; only one is allowed")
        if len(profiles) > 1 and not handlers and not self._names.incomplete:
            self._problems.error("plugins", f"{len(profiles)} scheduling profiles need a profile handler")
        for spec in handlers:
            for message in spec.kind.check_profiles(spec.parameters, profiles):
                self._problems.error(spec.path, message)

    def _parsers(self, injector: Injector) -> tuple[str, ...]:
        section, former = self._document.request_handler, self._document.parser
        if section is not UNSET and section.parsers:
            if former is not UNSET:
                self._problems.warn("parser", "has no effect beside requestHandler.parsers; leave it out")
            refs = [(ref.plugin_ref, f"requestHandler.parsers[{at}]") for at, ref in enumerate(section.parsers)]
        elif former is not UNSET:
            self._problems.warn("parser", "deprecated; write requestHandler.parsers")
            refs = [(former.plugin_ref, "parser")]
            if former.plugin_ref in DEFAULT_PARSERS and not self._names.known(former.plugin_ref):
                injector.add(former.plugin_ref, "parser")  # older generations needed no entry under plugins for it
        else:
            return ()
        found: list[str] = []
        for ref, path in refs:
            name = self._names.resolve(ref, Role.PARSER, join(path, "pluginRef"))
            if name in found:
                self._problems.error(join(path, "pluginRef"), f"{show(name)} is listed twice")
            elif name is not None:
                found.append(name)
        return tuple(found)

    def _detector(self, flow_control: FlowControlSection | None) -> str | None:
        former = self._document.saturation_detector
        path = "saturationDetector"
        if flow_control is not None and flow_control.saturation_detector is not None:
            if former is not UNSET:
                self._problems.warn(path, "has no effect beside flowControl.saturationDetector; leave it out")
            path, name = f"flowControl.{path}", flow_control.saturation_detector.plugin_ref
        elif former is UNSET:
            return None
        elif not former:
            self._problems.warn(path, "has no effect; omit it")
            return None
        elif "pluginRef" not in former:
            return self._inline_detector(former, path)
        else:
            self._problems.warn(path, "deprecated; write flowControl.saturationDetector")
            section = decode(former, Ref, path, self._problems)
            if section is MISSING:
                return None
            name = section.plugin_ref
        if name == DETECTOR and name not in self._plugins:
            return None  # the default, which is added
        return self._names.resolve(name, Role.SATURATION_DETECTOR, join(path, "pluginRef"))

    def _inline_detector(self, raw: dict[str, Any], path: str) -> str | None:
        """The thresholds in the section itself, as documents wrote them before detectors were plugins."""
        kind = self._registry.find(DETECTOR)
        if kind is None:
            self._problems.error(path, f"the plugin type {DETECTOR} isn't installed")
            return None
        self._problems.warn(path, f"thresholds here are deprecated; write a {DETECTOR} plugin")
        parameters = decode(raw, kind.Parameters, path, self._problems, ignore_case=True)
        if DETECTOR in self._plugins:
            self._problems.error(path, f"thresholds here and in the plugin {DETECTOR!r}; leave these out")
        elif parameters is not MISSING:
            self._plugins[DETECTOR] = PluginSpec(DETECTOR, kind, parameters, path)
            return DETECTOR
        return None

    def _data_layer(self) -> tuple[DataLayerSection, str]:
        """The section, and the key that it is under."""
        new, old = self._document.data_layer, self._document.data
        if old is not UNSET:
            if new is UNSET:
                self._problems.warn("data", "deprecated; write dataLayer")
                return old, "data"
            self._problems.error("data", "the same section as dataLayer under its former name; write dataLayer")
        return DataLayerSection() if new is UNSET else new, "dataLayer"

    def _flow_control(self, on: bool) -> FlowControlSection | None:
        section = self._document.flow_control
        if section is UNSET:
            return None
        path = "flowControl"
        if not on:
            if section != FlowControlSection(saturation_detector=section.saturation_detector):
                self._problems.warn(path, "the feature gate flowControl is off: only its saturationDetector counts")
            return section
        check_flow_control(section, self._names, self._problems)
        return section
