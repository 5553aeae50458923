"""From an EndpointPickerConfig's text to a `LoadedConfig`, or to every reason why not.

Steps, each adding its problems to the same list: read the document strictly; move what older generations wrote to where
it is now; create the plugin specs; resolve references; inject defaults in the Go original's order (profiles and
handler, parsers, saturation detector, data layer, producers). Defaults go by a plugin's type, never by its name, and
ties by the document's order.
"""

from typing import Any

from msgspec import UNSET

from shared.config.decode import MISSING, decode
from shared.config.defaults import DEFAULT_DOCUMENT, Injector
from shared.config.loaded import LoadedConfig, PluginSpec, ProfileMember, ProfileSpec, SourceSpec
from shared.config.problems import Problems, join, nearest, show
from shared.config.schema import API_VERSIONS, KIND, DataLayerSection, Document, FlowControlSection, PriorityBand
from shared.config.yaml import parse_documents
from shared.plugin import Plugin, Registry, Role, Stability

GATES = {"flowControl": False, "haPopulateNonLeaderDatastore": True}
"""Feature gates and whether they are on by default."""
FORMER_GATES = ("dataLayer", "enableLegacyMetrics", "prepareDataPlugins")
"""Gates of older generations: what they switched is always on, or gone."""


def load(text: str, registry: Registry, origin: str = "", *, allow_experimental: bool = False) -> LoadedConfig:
    """Load a configuration; an empty text means the built-in default.

    Raises `Invalid` with every problem of the document, led by `origin`.
    """
    problems = Problems()
    documents = parse_documents(text if text.strip() else DEFAULT_DOCUMENT, problems)
    problems.raise_if_any(origin)
    if len(documents) != 1:
        problems.error("", f"{len(documents)} YAML documents; one is expected")
        problems.raise_if_any(origin)
    return load_document(documents[0], registry, origin, allow_experimental=allow_experimental)


def load_document(
    raw: object, registry: Registry, origin: str = "", *, allow_experimental: bool = False
) -> LoadedConfig:
    """Load a configuration that is plain data already. Raises `Invalid` as `load` does."""
    form = Problems()
    document = decode(raw, Document, "", form, lenient=True)
    if document is MISSING:
        form.raise_if_any(origin)
    meaning = Problems()
    loaded = _Loader(document, registry, meaning, allow_experimental).load(origin)
    meaning.errors[:] = [one for one in meaning.errors if not any(_within(one.path, bad.path) for bad in form.errors)]
    form.errors += meaning.errors
    form.raise_if_any(origin)
    assert loaded is not None
    return loaded


def _within(path: str, outer: str) -> bool:
    """Whether a path is, or lies inside, one that is already known to be bad."""
    return path == outer or path.startswith((f"{outer}.", f"{outer}["))


class _Loader:
    def __init__(self, document: Document, registry: Registry, problems: Problems, allow_experimental: bool) -> None:
        self._document = document
        self._registry = registry
        self._problems = problems
        self._allow_experimental = allow_experimental
        self._plugins: dict[str, PluginSpec] = {}
        self._broken: set[str] = set()
        """Names whose entries have problems of their own: a reference to one is no second problem."""

    def load(self, origin: str) -> LoadedConfig | None:
        self._header()
        gates = self._gates()
        for index, _ in enumerate(self._document.plugins):
            self._plugin(index)
        injector = Injector(self._plugins, self._registry, self._problems)
        data_layer = self._data_layer()
        flow_control = self._flow_control()
        profiles = self._profiles()
        parsers = self._parsers()
        detector = self._detector(flow_control)
        sources = self._sources(data_layer)
        discovery = None
        if data_layer.discovery is not None:
            discovery = self._resolve(data_layer.discovery.plugin_ref, Role.DISCOVERY, "dataLayer.discovery.pluginRef")
        if self._problems.errors:
            return None  # defaults on top of a broken document would only add follow-up problems
        profiles = injector.profiles(profiles)
        handler = injector.profile_handler(profiles)
        parsers = parsers or injector.parsers()
        detector = detector or injector.saturation_detector()
        sources = injector.sources(sources, data_layer.inject_defaults)
        injector.producers()
        if gates["flowControl"]:
            self._problems.warn(
                "featureGates", "flowControl: requests are admitted or shed at once; queueing isn't available"
            )
        return LoadedConfig(
            origin=origin,
            plugins=self._plugins,
            profiles=profiles,
            profile_handler=handler,
            parsers=parsers,
            saturation_detector=detector,
            sources=sources,
            discovery=discovery,
            stale_metrics=data_layer.stale_metrics,
            flow_control=flow_control if gates["flowControl"] else None,
            gates=gates,
            warnings=tuple(self._problems.warnings),
        )

    def _header(self) -> None:
        if self._document.kind != KIND:
            self._problems.error("kind", f"{show(self._document.kind)}; {KIND!r} is expected")
        if self._document.api_version not in API_VERSIONS:
            allowed = " or ".join(repr(one) for one in API_VERSIONS)
            self._problems.error("apiVersion", f"{show(self._document.api_version)}; {allowed} is expected")
        elif self._document.api_version != API_VERSIONS[0]:
            self._problems.warn("apiVersion", f"{self._document.api_version} is deprecated; write {API_VERSIONS[0]}")

    def _gates(self) -> dict[str, bool]:
        gates = dict(GATES)
        folded = {name.lower(): name for name in (*GATES, *FORMER_GATES)}
        for index, text in enumerate(self._document.feature_gates):
            path = f"featureGates[{index}]"
            word, has_value, value = text.strip().partition("=")
            name = folded.get(word.strip().lower())
            if name is None:
                self._problems.error(path, f"{show(text)} names no feature gate; known: {', '.join(sorted(GATES))}")
                continue
            if has_value and value.strip().lower() not in _BOOLEANS:
                self._problems.error(path, f"{show(text)}: {value!r} isn't true or false")
                continue
            if name in FORMER_GATES:
                self._problems.warn(path, f"{name} has no effect any more; leave it out")
            else:
                gates[name] = _BOOLEANS[value.strip().lower()] if has_value else True
        return gates

    def _plugin(self, index: int) -> None:
        entry = self._document.plugins[index]
        path = f"plugins[{index}]"
        name = entry.name or entry.type
        if not entry.type:
            self._problems.error(join(path, "type"), "required, and missing")
            self._broken.add(name)
            return
        if name in self._plugins or name in self._broken:
            self._problems.error(join(path, "name"), f"{show(name)} is the name of an earlier plugin; names are unique")
            return
        kind = self._registry.find(entry.type)
        if kind is None:
            hint = nearest(entry.type, self._registry.names())
            self._problems.error(join(path, "type"), f"{show(entry.type)} is no plugin type that is installed{hint}")
            self._broken.add(name)
            return
        if entry.type != kind.TYPE:
            self._problems.warn(join(path, "type"), f"{entry.type} is deprecated; write {kind.TYPE}")
        if kind.STABILITY is Stability.ALPHA and not self._allow_experimental:
            self._problems.error(
                join(path, "type"), f"{entry.type} is experimental (alpha); allow it with --allow-experimental-plugins"
            )
            self._broken.add(name)
            return
        parameters_path = join(path, "parameters")
        parameters = decode(entry.parameters or {}, kind.Parameters, parameters_path, self._problems, ignore_case=True)
        if parameters is MISSING:
            self._broken.add(name)
            return
        for message in kind.deprecations(parameters):
            self._problems.warn(parameters_path, message)
        self._plugins[name] = PluginSpec(name, kind, parameters, path)

    def _resolve(self, name: str, role: Role, path: str) -> str | None:
        """The name if a plugin of that name plays the role; else a problem, and None."""
        if not name:
            self._problems.error(path, "required, and missing")
        elif name in self._plugins:
            if role in self._plugins[name].kind.ROLES:
                return name
            self._problems.error(path, f"{show(name)} is a {self._plugins[name].kind.TYPE}, not a {role.value}")
        elif name not in self._broken:
            self._problems.error(path, f"{show(name)} is no plugin's name{nearest(name, self._plugins)}")
        return None

    def _profiles(self) -> tuple[ProfileSpec, ...]:
        profiles: list[ProfileSpec] = []
        for index, entry in enumerate(self._document.scheduling_profiles):
            path = f"schedulingProfiles[{index}]"
            if not entry.name:
                self._problems.error(join(path, "name"), "required, and missing")
            elif any(one.name == entry.name for one in profiles):
                self._problems.error(join(path, "name"), f"{show(entry.name)} is the name of an earlier profile")
            members: list[ProfileMember] = []
            for position, ref in enumerate(entry.plugins):
                ref_path = f"{path}.plugins[{position}].pluginRef"
                spec = self._plugins.get(ref.plugin_ref)
                if not ref.plugin_ref:
                    self._problems.error(ref_path, "required, and missing")
                elif spec is not None:
                    members.append(ProfileMember(spec, 1.0 if ref.weight is None else ref.weight))
                elif ref.plugin_ref not in self._broken:
                    hint = nearest(ref.plugin_ref, self._plugins)
                    self._problems.error(ref_path, f"{show(ref.plugin_ref)} is no plugin's name{hint}")
            profile = ProfileSpec(entry.name, tuple(members))
            pickers = profile.having(Role.PICKER)
            if len(pickers) > 1:
                names = " and ".join(repr(one.plugin.name) for one in pickers)
                self._problems.error(join(path, "plugins"), f"{names} are pickers; a profile has one")
            profiles.append(profile)
        self._check_handlers(len(profiles))
        return tuple(profiles)

    def _check_handlers(self, profiles: int) -> None:
        handlers = [one for one in self._plugins.values() if Role.PROFILE_HANDLER in one.kind.ROLES]
        if len(handlers) > 1:
            names = " and ".join(repr(one.name) for one in handlers)
            self._problems.error("plugins", f"{names} are profile handlers; there is one")
        if profiles > 1 and not handlers and not self._broken:
            self._problems.error("plugins", f"{profiles} scheduling profiles need a profile handler")
        for one in handlers:
            if one.kind.TYPE == "single-profile-handler" and profiles > 1:
                self._problems.error(one.path, f"single-profile-handler runs one scheduling profile, not {profiles}")

    def _parsers(self) -> tuple[str, ...]:
        section = self._document.request_handler
        if section is not UNSET and section.parsers:
            refs = [(one, f"requestHandler.parsers[{index}].pluginRef") for index, one in enumerate(section.parsers)]
        elif self._document.parser is not UNSET:
            self._problems.warn("parser", "deprecated; write requestHandler.parsers")
            refs = [(self._document.parser, "parser.pluginRef")]
        else:
            return ()
        found = [self._resolve(ref.plugin_ref, Role.PARSER, path) for ref, path in refs]
        return tuple(name for name in found if name is not None)

    def _detector(self, flow_control: FlowControlSection | None) -> str | None:
        if flow_control is not None and flow_control.saturation_detector is not None:
            path, name = "flowControl.saturationDetector.pluginRef", flow_control.saturation_detector.plugin_ref
        elif self._document.saturation_detector is not UNSET:
            raw = self._document.saturation_detector
            path = "saturationDetector"
            if "pluginRef" not in raw and raw:
                return self._inline_detector(raw)
            self._problems.warn(path, "deprecated; write flowControl.saturationDetector")
            for key in raw:
                if key != "pluginRef":
                    self._problems.error(join(path, key), "unknown field beside pluginRef")
            ref = raw.get("pluginRef", "")
            path, name = "saturationDetector.pluginRef", ref if isinstance(ref, str) else ""
        else:
            return None
        if name == "utilization-detector" and name not in self._plugins:
            return None  # the default, which is injected
        return self._resolve(name, Role.SATURATION_DETECTOR, path)

    def _inline_detector(self, raw: dict[str, Any]) -> str | None:
        """The thresholds in the section itself, as documents wrote them before detectors were plugins."""
        path = "saturationDetector"
        kind = self._registry.find("utilization-detector")
        if kind is None:
            self._problems.error(path, "the plugin type utilization-detector isn't installed")
            return None
        self._problems.warn(path, "thresholds here are deprecated; write a utilization-detector plugin")
        parameters = decode(raw, kind.Parameters, path, self._problems, ignore_case=True)
        if parameters is MISSING:
            return None
        name = kind.TYPE
        if name in self._plugins:
            self._problems.error(path, f"thresholds here and in the plugin {name!r}; leave these out")
            return None
        self._plugins[name] = PluginSpec(name, kind, parameters)
        return name

    def _data_layer(self) -> DataLayerSection:
        new, old = self._document.data_layer, self._document.data
        if old is not UNSET:
            if new is not UNSET:
                self._problems.error("data", "the same section as dataLayer under its former name; write dataLayer")
            else:
                self._problems.warn("data", "deprecated; write dataLayer")
                return old
        return DataLayerSection() if new is UNSET else new

    def _sources(self, section: DataLayerSection) -> tuple[SourceSpec, ...]:
        sources: list[SourceSpec] = []
        for index, entry in enumerate(section.sources):
            path = f"dataLayer.sources[{index}]"
            source = self._resolve(entry.plugin_ref, Role.DATA_SOURCE, join(path, "pluginRef"))
            extractors = [
                self._resolve(one.plugin_ref, Role.EXTRACTOR, f"{path}.extractors[{position}].pluginRef")
                for position, one in enumerate(entry.extractors)
            ]
            if any(one.source == source for one in sources):
                self._problems.error(join(path, "pluginRef"), f"{show(entry.plugin_ref)} is listed twice")
            if source is not None:
                sources.append(SourceSpec(source, tuple(name for name in extractors if name is not None)))
        return tuple(sources)

    def _flow_control(self) -> FlowControlSection | None:
        section = self._document.flow_control
        if section is UNSET:
            return None
        path = "flowControl"
        if ref := section.usage_limit_policy_plugin_ref:
            self._resolve(ref, Role.USAGE_LIMIT_POLICY, f"{path}.usageLimitPolicyPluginRef")
        bands: list[tuple[str, PriorityBand]] = [
            (f"{path}.priorityBands[{index}]", band) for index, band in enumerate(section.priority_bands)
        ]
        seen: dict[int, str] = {}
        for band_path, band in bands:
            if band.priority is None:
                self._problems.error(join(band_path, "priority"), "required, and missing")
            elif band.priority in seen:
                self._problems.error(join(band_path, "priority"), f"{band.priority} is {seen[band.priority]}'s too")
            else:
                seen[band.priority] = band_path
        for key, template in (
            ("defaultPriorityBand", section.default_priority_band),
            ("defaultNegativePriorityBand", section.default_negative_priority_band),
        ):
            if template is not None:
                bands.append((join(path, key), template))
        for band_path, band in bands:
            if band.fairness_policy_ref:
                self._resolve(band.fairness_policy_ref, Role.FAIRNESS_POLICY, join(band_path, "fairnessPolicyRef"))
            if band.ordering_policy_ref:
                self._resolve(band.ordering_policy_ref, Role.ORDERING_POLICY, join(band_path, "orderingPolicyRef"))
        return section


_BOOLEANS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def plugin_types(config: LoadedConfig) -> list[type[Plugin]]:
    """The types that a configuration runs, each once, in order."""
    return list(dict.fromkeys(spec.kind for spec in config.plugins.values()))
