"""The sections `dataLayer` and `flowControl` as they are written, with the plugins that they name."""

from shared.config.loaded import EVICTION_ROLES, SourceSpec
from shared.config.names import Names
from shared.config.problems import Problems, join, show
from shared.config.schema import DataLayerSection, FlowControlSection
from shared.plugin import Role


def read_sources(section: DataLayerSection, key: str, names: Names, problems: Problems) -> tuple[SourceSpec, ...]:
    """The sources of the section under that key, each with its extractors."""
    sources: list[SourceSpec] = []
    for index, entry in enumerate(section.sources):
        path = f"{key}.sources[{index}]"
        source = names.resolve(entry.plugin_ref, Role.DATA_SOURCE, join(path, "pluginRef"))
        if any(known.source == source for known in sources):
            problems.error(join(path, "pluginRef"), f"{show(source)} is listed twice")
        extractors: list[str] = []
        for position, ref in enumerate(entry.extractors):
            at = f"{path}.extractors[{position}].pluginRef"
            name = names.resolve(ref.plugin_ref, Role.EXTRACTOR, at)
            if name is None:
                continue
            if name in extractors:
                problems.error(at, f"{show(name)} is listed twice")
            if source is not None:
                _check_fit(source, name, at, names, problems)
            extractors.append(name)
        if source is not None:
            sources.append(SourceSpec(source, tuple(extractors)))
    return tuple(sources)


def _check_fit(source: str, extractor: str, path: str, names: Names, problems: Problems) -> None:
    giver, reader = names.plugins[source], names.plugins[extractor]
    for gives, reads in ((giver.kind.OUTPUT, reader.kind.INPUT), (giver.topic, reader.topic)):
        if gives and reads and gives != reads:
            problems.error(path, f"{show(extractor)} reads {reads}; the source {show(source)} gives {gives}")
            return


def check_replicas(section: DataLayerSection, key: str, names: Names, problems: Problems) -> None:
    """Warn about keys with which the newest generation lets replicas share their load: pickers share it without
    configuration."""
    given: list[str] = []
    if section.peer_discovery is not None:
        given.append("peerDiscovery")
        names.find(section.peer_discovery.plugin_ref, f"{key}.peerDiscovery.pluginRef")
    if section.cross_replica_syncer_plugin_ref:
        given.append("crossReplicaSyncerPluginRef")
        names.find(section.cross_replica_syncer_plugin_ref, f"{key}.crossReplicaSyncerPluginRef")
    if section.cross_replica_sync_interval is not None:
        given.append("crossReplicaSyncInterval")
    for name in given:
        problems.warn(join(key, name), "no effect: pickers share their load by themselves; leave it out")


def check_flow_control(section: FlowControlSection, names: Names, problems: Problems) -> None:
    """Whether the bands' priorities differ, and policies are there; not the saturation detector, which others check."""
    path = "flowControl"
    for role in EVICTION_ROLES if section.enable_eviction else ():
        found = [show(spec.name) for spec in names.plugins.values() if role in spec.kind.ROLES]
        if len(found) > 1:
            problems.error("plugins", f"{' and '.join(found)} are each an {role.value}; only one is allowed")
    if ref := section.usage_limit_policy_plugin_ref:
        names.resolve(ref, Role.USAGE_LIMIT_POLICY, f"{path}.usageLimitPolicyPluginRef")
    bands = [(f"{path}.priorityBands[{index}]", band) for index, band in enumerate(section.priority_bands)]
    seen: dict[int, str] = {}
    for band_path, band in bands:
        if band.priority is None:
            problems.error(join(band_path, "priority"), "required, and missing")
        elif band.priority in seen:
            problems.error(join(band_path, "priority"), f"{band.priority} is {seen[band.priority]}'s too")
        else:
            seen[band.priority] = band_path
    if section.default_priority_band is not None:
        bands.append((join(path, "defaultPriorityBand"), section.default_priority_band))
    if section.default_negative_priority_band is not None:
        bands.append((join(path, "defaultNegativePriorityBand"), section.default_negative_priority_band))
    for band_path, band in bands:
        if band.fairness_policy_ref:
            names.resolve(band.fairness_policy_ref, Role.FAIRNESS_POLICY, join(band_path, "fairnessPolicyRef"))
        if band.ordering_policy_ref:
            names.resolve(band.ordering_policy_ref, Role.ORDERING_POLICY, join(band_path, "orderingPolicyRef"))
