"""What a configuration gets that it doesn't say, as the Go original injects it (by type, in a fixed order)."""

from typing import Any

from shared.attributes import AttributeKey
from shared.config.decode import MISSING, decode
from shared.config.loaded import PluginSpec, ProfileMember, ProfileSpec, SourceSpec
from shared.config.problems import Problems
from shared.plugin import Registry, Role

DEFAULT_DOCUMENT = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
- type: core-metrics-extractor
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: queue-scorer
    weight: 2
  - pluginRef: kv-cache-utilization-scorer
    weight: 2
  - pluginRef: prefix-cache-scorer
    weight: 3
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors:
    - pluginRef: core-metrics-extractor
"""
"""What runs when no configuration is given: the Go original's default."""

DEFAULT_PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
"""In the order in which they are asked; those that aren't installed are left out."""


class Injector:
    """Adds the missing plugins to `plugins`, and names them where the document left a place empty."""

    def __init__(self, plugins: dict[str, PluginSpec], registry: Registry, problems: Problems) -> None:
        self._plugins = plugins
        self._registry = registry
        self._problems = problems

    def profiles(self, given: tuple[ProfileSpec, ...]) -> tuple[ProfileSpec, ...]:
        """The given profiles, or one of everything that filters, scores or picks; each with a picker."""
        if not given:
            roles = {Role.FILTER, Role.SCORER, Role.PICKER}
            members = [ProfileMember(spec) for spec in self._plugins.values() if roles & spec.kind.ROLES]
            pickers = [one for one in members if Role.PICKER in one.plugin.kind.ROLES]
            given = (ProfileSpec("default", tuple(one for one in members if one not in pickers[1:])),)
        if all(profile.having(Role.PICKER) for profile in given):
            return given
        pickers_there = [spec for spec in self._plugins.values() if Role.PICKER in spec.kind.ROLES]
        picker = pickers_there[0] if pickers_there else self._add("max-score-picker")
        if picker is None:
            return given
        return tuple(
            profile
            if profile.having(Role.PICKER)
            else ProfileSpec(profile.name, (*profile.members, ProfileMember(picker)))
            for profile in given
        )

    def profile_handler(self, profiles: tuple[ProfileSpec, ...]) -> str:
        for spec in self._plugins.values():
            if Role.PROFILE_HANDLER in spec.kind.ROLES:
                return spec.name
        added = self._add("single-profile-handler")
        return added.name if added else ""

    def parsers(self) -> tuple[str, ...]:
        """The default list; a parser that the document configures keeps its parameters there."""
        names: list[str] = []
        for kind in DEFAULT_PARSERS:
            if self._registry.find(kind) is not None:
                spec = self._of_type(kind) or self._add(kind)
                names += [spec.name] if spec else []
        return tuple(names)

    def saturation_detector(self) -> str:
        spec = self._of_type("utilization-detector") or self._add("utilization-detector")
        return spec.name if spec else ""

    def sources(self, given: tuple[SourceSpec, ...], inject: bool) -> tuple[SourceSpec, ...]:
        """The given sources; the metrics source with the core extractor too, unless a source of its type is there."""
        if not inject or any(self._plugins[one.source].kind.TYPE == "metrics-data-source" for one in given):
            return given
        source = self._of_type("metrics-data-source") or self._add("metrics-data-source")
        extractor = self._of_type("core-metrics-extractor") or self._add("core-metrics-extractor")
        if source is None or extractor is None:
            return given
        return (*given, SourceSpec(source.name, (extractor.name,)))

    def producers(self) -> None:
        """For each required attribute that nothing produces: its data producer, or a problem that names who would.

        A producer that is added can require attributes itself.
        """
        pending = list(self._plugins.values())
        while pending:
            spec = pending.pop(0)
            for key in spec.kind.REQUIRES:
                if any(key in one.kind.PRODUCES for one in self._plugins.values()):
                    continue
                makers = self._registry.producers(key)
                default = next((one for one in makers if Role.DATA_PRODUCER in one.ROLES), None)
                if default is None:
                    self._problems.error(
                        spec.path or spec.name, f"{spec.kind.TYPE} needs the attribute {key.name}; {_advice(key)}"
                    )
                    continue
                added = self._add(default.TYPE, spec.kind.producer_parameters(spec.parameters, default.TYPE))
                if added is not None:
                    pending.append(added)

    def _of_type(self, kind: str) -> PluginSpec | None:
        return next((spec for spec in self._plugins.values() if spec.kind.TYPE == kind), None)

    def _add(self, type_name: str, parameters: dict[str, Any] | None = None) -> PluginSpec | None:
        kind = self._registry.find(type_name)
        if kind is None:
            self._problems.error(
                "plugins", f"the plugin type {type_name!r}, which is added by default, isn't installed"
            )
            return None
        if type_name in self._plugins:
            other = self._plugins[type_name]
            self._problems.error(
                other.path or "plugins", f"the name {type_name!r} is needed for a plugin of that type; rename this one"
            )
            return None
        decoded = decode(parameters or {}, kind.Parameters, type_name, self._problems, ignore_case=True)
        if decoded is MISSING:
            return None
        spec = PluginSpec(type_name, kind, decoded)
        self._plugins[type_name] = spec
        return spec


def _advice(key: AttributeKey[Any]) -> str:
    return f"add {key.producer}, which produces it, under a source in dataLayer.sources, or leave injectDefaults on"
