"""Adds the defaults that a configuration leaves out, as the Go original does (by type, in a fixed order)."""

import hashlib
from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from shared.attributes import CORE, AttributeKey
from shared.config.decode import MISSING, decode
from shared.config.inputs import active_producers, fed_extractors
from shared.config.loaded import PluginSpec, ProfileMember, ProfileSpec, SourceSpec
from shared.config.problems import Problems, join, show
from shared.config.schema import FlowControlSection, PriorityBand
from shared.plugin import Input, Registry, Role

DEFAULT_DOCUMENT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: prefix-cache-affinity-filter
  parameters: {maxRequestGap: 32}
- type: token-load-scorer
- type: metrics-data-source
- type: core-metrics-extractor
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: prefix-cache-affinity-filter
  - pluginRef: token-load-scorer
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
"""
"""What runs when no configuration is given: sticky until saturated. The Go original's default is
docs/profiles/weighted-sum.yaml."""

DEFAULT_PROFILE = "default"
"""The profile of a document that has none."""

BUILT_IN = "built-in default"
"""The origin of the default document."""

DETECTOR = "utilization-detector"
"""The saturation detector that runs unless another is named."""

FAIRNESS, ORDERING, USAGE_LIMITS = (
    "global-strict-fairness-policy",
    "fcfs-ordering-policy",
    "static-usage-limit-policy",
)
"""The policies of flow control that run unless others are named."""
EVICTION = {
    Role.EVICTION_FILTER: "sheddable-eviction-filter",
    Role.EVICTION_ORDER: "priority-then-time-eviction-order-policy",
}
"""Those of eviction, which nothing names: the document's plugins of these roles run, else these."""

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
"""In the order in which they are asked; those that aren't installed are left out."""


def revision(text: str) -> str:
    """Identifies a document: the first 12 hexadecimal digits of its SHA-256. An empty text is the built-in default."""
    written = text if text.strip() else DEFAULT_DOCUMENT
    return hashlib.sha256(written.encode("utf-8", "surrogatepass")).hexdigest()[:12]


class Injector:
    """Adds missing plugins to `plugins`, and names them where the document leaves a place empty. It goes by types."""

    def __init__(self, plugins: dict[str, PluginSpec], registry: Registry, problems: Problems) -> None:
        self._plugins = plugins
        self._registry = registry
        self._problems = problems

    def profiles(self, given: tuple[ProfileSpec, ...]) -> tuple[ProfileSpec, ...]:
        """The given profiles, or one of everything listed that filters, scores or picks, unless another
        plugin calls it; each with a picker."""
        if not given:
            roles = {Role.FILTER, Role.SCORER, Role.PICKER}
            called = {reference.name for spec in self._plugins.values() for reference in spec.references}
            members = [
                ProfileMember(spec)
                for spec in self._plugins.values()
                if spec.listed and roles & spec.kind.ROLES and spec.name not in called
            ]
            pickers = [member for member in members if Role.PICKER in member.plugin.kind.ROLES]
            given = (ProfileSpec(DEFAULT_PROFILE, tuple(member for member in members if member not in pickers[1:])),)
        if all(profile.having(Role.PICKER) for profile in given):
            return given
        picker = self._playing(Role.PICKER) or self.add("max-score-picker")
        if picker is None:
            return given
        return tuple(
            profile
            if profile.having(Role.PICKER)
            else ProfileSpec(profile.name, (*profile.members, ProfileMember(picker)))
            for profile in given
        )

    def profile_handler(self, profiles: tuple[ProfileSpec, ...]) -> str:
        """The handler that is there, or the one of a single profile."""
        if (spec := self._playing(Role.PROFILE_HANDLER)) is not None:
            return spec.name
        return _name(self.add("single-profile-handler")) if len(profiles) == 1 else ""

    def flow_control(self, given: FlowControlSection) -> FlowControlSection:
        """The section with a policy in each place."""

        def band(entry: PriorityBand) -> PriorityBand:
            return replace(
                entry,
                fairness_policy_ref=entry.fairness_policy_ref or _name(self._default_plugin(FAIRNESS)),
                ordering_policy_ref=entry.ordering_policy_ref or _name(self._default_plugin(ORDERING)),
            )

        negative = given.default_negative_priority_band
        named = replace(
            given,
            default_priority_band=band(given.default_priority_band or PriorityBand()),
            default_negative_priority_band=None if negative is None else band(negative),
            priority_bands=tuple(map(band, given.priority_bands)),
            usage_limit_policy_plugin_ref=given.usage_limit_policy_plugin_ref
            or _name(self._default_plugin(USAGE_LIMITS)),
        )
        for role, kind in EVICTION.items() if given.enable_eviction else ():
            _ = self._playing(role) or self.add(kind)
        return named

    def parsers(self) -> tuple[str, ...]:
        """The default list; a parser that the document configures keeps its parameters there."""
        return tuple(
            _name(self._default_plugin(kind)) for kind in DEFAULT_PARSERS if self._registry.find(kind) is not None
        )

    def saturation_detector(self) -> str:
        return _name(self._default_plugin(DETECTOR))

    def sources(self, given: tuple[SourceSpec, ...], inject: bool) -> tuple[SourceSpec, ...]:
        """The given sources and the added ones.

        A listed extractor that no source names is added to a source of its default type. Unless `injectDefaults` is off
        or a source feeds it, the core extractor is added to the first metrics source, so that a page is scraped once.
        """
        sources = given
        for spec in list(self._plugins.values()):
            if spec.listed and spec.kind.DEFAULT_SOURCE and spec.name not in fed_extractors(sources):
                source = self._source(
                    sources, spec.kind.DEFAULT_SOURCE, spec.topic, spec.kind.DEFAULT_SOURCE_PARAMETERS
                )
                sources = _with_extractor(sources, source, spec)
        if not inject or any(self._plugins[name].kind.TYPE == CORE for name in fed_extractors(sources)):
            return sources
        return _with_extractor(sources, self._source(sources, "metrics-data-source"), self._default_plugin(CORE))

    def _source(
        self,
        sources: tuple[SourceSpec, ...],
        kind: str,
        topic: str = "",
        parameters: Mapping[str, Any] = MappingProxyType({}),
    ) -> PluginSpec | None:
        """The first source of the type and topic: one that feeds something, else a listed one, else an added one."""
        known = [*(self._plugins[source.source] for source in sources), *self._plugins.values()]
        there = next((spec for spec in known if spec.kind.TYPE == kind and topic in ("", spec.topic)), None)
        return there or self.add(kind, parameters=dict(parameters))

    def producers(self, sources: tuple[SourceSpec, ...]) -> None:
        """Add the data producer of each required attribute that nothing produces, or note a problem with advice. An
        added producer may require attributes itself. An extractor produces only if a source feeds it."""
        made_by: dict[AttributeKey[Any], PluginSpec] = {}
        for spec in active_producers(self._plugins, sources):
            for key in spec.produces:
                made_by.setdefault(key, spec)
        pending = deque(self._plugins.values())
        while pending:
            spec = pending.popleft()
            for wanted in spec.consumes:
                if wanted.key is None or wanted.optional:
                    continue
                maker = made_by.get(wanted.key)
                if maker is not None:
                    self._forward(spec, wanted, maker)
                elif (added := self._producer(spec, wanted, wanted.key)) is not None:
                    pending.append(added)
                    for made in added.produces:
                        made_by.setdefault(made, added)

    def _producer(self, spec: PluginSpec, wanted: Input, key: AttributeKey[Any]) -> PluginSpec | None:
        kind = next((kind for kind in self._registry.producers(key) if Role.DATA_PRODUCER in kind.ROLES), None)
        if kind is None:
            self._problems.error(spec.path or spec.name, f"{spec.kind.TYPE} needs {key.name}; {self._advice(key)}")
            return None
        return self.add(kind.TYPE, _parameters_of(spec), dict(wanted.producer_parameters))

    def _advice(self, key: AttributeKey[Any]) -> str:
        maker = self._registry.find(key.producer)
        if maker is not None and maker.DEFAULT_SOURCE:
            return f"add {key.producer}, which produces it, to plugins; it comes with a {maker.DEFAULT_SOURCE}"
        return f"add {key.producer}, which produces it, under a source in dataLayer.sources, or leave injectDefaults on"

    def _forward(self, spec: PluginSpec, wanted: Input, maker: PluginSpec) -> None:
        """Parameters that a plugin has for its producer only count for one that is added because of it."""
        forwarded = wanted.producer_parameters
        if not forwarded:
            return
        same = decode(forwarded, maker.kind.Parameters, "", Problems(), ignore_case=True)
        if same != maker.parameters:
            names = ", ".join(forwarded)
            self._problems.warn(
                _parameters_of(spec), f"no effect of {names}: {show(maker.name)} has its own parameters"
            )

    def _playing(self, role: Role) -> PluginSpec | None:
        return next((spec for spec in self._plugins.values() if role in spec.kind.ROLES), None)

    def _default_plugin(self, kind: str) -> PluginSpec | None:
        """The plugin of the type, added where there is none."""
        there = next((spec for spec in self._plugins.values() if spec.kind.TYPE == kind), None)
        return there or self.add(kind)

    def add(self, kind_name: str, path: str = "", parameters: dict[str, Any] | None = None) -> PluginSpec | None:
        """A plugin of the type under the type's name; None after a problem. `path` is where its parameters are from."""
        kind = self._registry.find(kind_name)
        if kind is None:
            self._problems.error(
                path or "plugins", f"the plugin type {kind_name!r}, which is added by default, isn't installed"
            )
            return None
        if (other := self._plugins.get(kind_name)) is not None:
            self._problems.error(
                join(other.path or "plugins", "name"),
                f"the name {kind_name!r} is needed for the plugin of that type, added by default; rename this one",
            )
            return None
        decoded = decode(parameters or {}, kind.Parameters, path or kind_name, self._problems, ignore_case=True)
        if decoded is MISSING:
            return None
        spec = PluginSpec(kind_name, kind, decoded)
        self._plugins[kind_name] = spec
        return spec


def _with_extractor(
    sources: tuple[SourceSpec, ...], source: PluginSpec | None, extractor: PluginSpec | None
) -> tuple[SourceSpec, ...]:
    """The sources with the extractor on that one, which may be new among them; as they are without either."""
    if source is None or extractor is None:
        return sources
    at = next((at for at, attached in enumerate(sources) if attached.source == source.name), len(sources))
    extractors = sources[at].extractors if at < len(sources) else ()
    return (*sources[:at], SourceSpec(source.name, (*extractors, extractor.name)), *sources[at + 1 :])


def _name(spec: PluginSpec | None) -> str:
    return spec.name if spec is not None else ""


def _parameters_of(spec: PluginSpec) -> str:
    return join(spec.path, "parameters") if spec.path else spec.name
