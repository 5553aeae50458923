"""The pipeline of one configuration: parsers, director, plugins.

A changed configuration is built beside the running one and replaces it as a whole. The view (endpoints, load, prefix
index) belongs to neither and stays.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from services.picker.director import Director
from services.picker.flow_control.settings import FlowControlSettings, resolve
from services.picker.parsers.parser import Parser, ParserChain
from services.picker.scheduling.cycle import OnPluginFailure
from services.picker.scheduling.interfaces import SaturationDetector
from services.picker.scheduling.profile import Observe, untimed
from services.picker.scheduling.scheduler import Scheduler
from shared.attributes import AttributeKey
from shared.config.defaults import BUILT_IN
from shared.config.demand import demands
from shared.config.loaded import LoadedConfig, with_references
from shared.config.problems import Invalid, Problem
from shared.datalayer.endpoints import EndpointExtractor, EndpointExtractors, EndpointNotificationSource
from shared.datalayer.wiring import feeds
from shared.plugin import Role, Tier


@dataclass(repr=False, eq=False)
class Pipeline:
    """Parsers and director of one configuration."""

    config: LoadedConfig
    parsers: ParserChain
    director: Director
    endpoint_feeds: tuple[EndpointExtractors, ...] = ()
    """Extractors of endpoint events."""
    flow_control: FlowControlSettings | None = None
    """None where requests don't queue: the gate is off."""

    def __post_init__(self) -> None:
        self.reads = _reads(self.config)

    def state(self) -> dict[str, Any]:
        """What `/debug/state` shows of the configuration."""
        return {
            "origin": self.config.origin or BUILT_IN,
            "revision": self.config.revision,
            "plugins": {
                name: {"type": spec.kind.TYPE, "added_by_default": spec.injected}
                for name, spec in self.config.plugins.items()
            },
            "parsers": list(self.config.parsers),
            "saturation_detector": self.config.saturation_detector,
            "endpoint_sources": [feed.describe() for feed in self.endpoint_feeds],
            "stale_metrics": {
                "after": self.config.stale_metrics.after,
                "policy": self.config.stale_metrics.policy,
            },
            "warnings": [str(warning) for warning in self.config.warnings],
            **self.director.scheduler.state(),
        }

    def __repr__(self) -> str:
        return f"<Pipeline {self.config.origin or 'default'}: {self.director!r}>"


def _reads(config: LoadedConfig) -> Mapping[AttributeKey[Any], tuple[str, ...]]:
    """The extracted attributes that profiles and the saturation detector read, each with the plugins that do."""
    named = [member.plugin for profile in config.profiles for member in profile.members]
    deciding = [config.plugins[config.profile_handler], config.plugins[config.saturation_detector]]
    working = with_references([*named, *deciding], config.plugins)
    found: dict[AttributeKey[Any], tuple[str, ...]] = {}
    for maker, demand in demands(config.plugins, config.sources, config.inputs, config.stale_metrics).items():
        if Role.EXTRACTOR in config.plugins[maker].kind.ROLES:
            for key, readers in (*demand.required.items(), *demand.used.items()):
                if reading := tuple(reader for reader in readers if reader in working):
                    found[key] = (*found.get(key, ()), *reading)
    return found


def build(
    config: LoadedConfig,
    random: np.random.Generator,
    wall_clock: Callable[[], float],
    observe: Observe = untimed,
    *,
    honour_subset: bool = True,
    named_models_only: bool = False,
    emit_scores: bool = False,
    failed: OnPluginFailure = lambda *_: None,
) -> Pipeline:
    """Instances of the configuration's plugins, wired. Raises `Invalid` when a plugin refuses to be made, or lacks the
    class of its role."""
    plugins = config.instances(Tier.PICKER)
    detector = plugins[config.saturation_detector]
    if not isinstance(detector, SaturationDetector):
        raise Invalid([Problem(config.saturation_detector, f"{detector!r} implements no SaturationDetector")])
    queues = None if config.flow_control is None else resolve(config.flow_control, plugins)
    parsers = [plugin for name in config.parsers if isinstance(plugin := plugins[name], Parser)]
    director = Director(
        scheduler=Scheduler(config, plugins, observe),
        detector=detector,
        stale=config.stale_metrics,
        random=random,
        wall_clock=wall_clock,
        honour_subset=honour_subset,
        named_models_only=named_models_only,
        emit_scores=emit_scores,
        revision=config.revision,
        on_failure=failed,
    )
    endpoint_feeds = feeds(config, plugins, EndpointNotificationSource, EndpointExtractor)
    return Pipeline(config, ParserChain(parsers), director, endpoint_feeds, queues)
