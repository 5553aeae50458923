"""The default engine that the collector's metric flags make, and the metrics page that they name.

The Go original has these flags. They apply where the document leaves things open: a core extractor's own engines, and
the parameters that a metrics source is given, go before them.
"""

from collections.abc import Mapping

from msgspec.structs import replace

from services.collector.engines.configs import EngineConfig
from services.collector.engines.known import BUILT_IN, VLLM
from services.collector.engines.sufficiency import Words, shortfalls
from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.core.parameters import FLAT_NAMES
from services.collector.page.spec import parse_spec
from services.collector.settings import METRIC_FLAGS, CollectorSettings
from services.collector.sources.metrics import MetricsSource
from shared.config.demand import demands
from shared.config.loaded import LoadedConfig, PluginSpec
from shared.config.problems import Problems, join
from shared.quantities import format_duration
from shared.service.flags import flag_of

NAME = "flags"
"""The name of the engine that the flags make."""
OVERRULED = frozenset({"defaultEngine", "engineConfigs", *FLAT_NAMES})
"""Parameters of a core extractor that go before the flags."""

WORDS = Words(names={field: flag_of(setting) for setting, field in METRIC_FLAGS.items()}, off=lambda name: f'{name}=""')


def flags_engine(settings: CollectorSettings) -> EngineConfig | None:
    """The engine that the flags make, if any is given.

    What isn't given is that of the built-in engine to which the names of all metrics that are given belong; of none
    where they belong to none, or to several. Where flags only switch something off it is vllm's.
    """
    given = {field: text for setting, field in METRIC_FLAGS.items() if (text := getattr(settings, setting)) is not None}
    if not given:
        return None
    names = [spec.name for text in given.values() if (spec := parse_spec(text)) is not None]
    bases = [one for one in BUILT_IN if names and all(name.startswith(one.prefixes) for name in names)]
    base = bases[0].name if bases else "" if names else VLLM.name
    return EngineConfig(name=NAME, extends=base, **given)


def with_flags(config: LoadedConfig, settings: CollectorSettings) -> LoadedConfig:
    """The configuration with what the flags say where it leaves that open.

    Raises `Invalid` that names the flags to give when the engine that they make can't give what plugins require.
    """
    problems = Problems()
    engine = flags_engine(settings)
    page = _page(settings)
    plugins = dict(config.plugins)
    wanted = demands(config.plugins, config.sources, config.inputs, config.stale_metrics)
    for name, spec in config.plugins.items():
        if issubclass(spec.kind, CoreMetricsExtractor) and engine is not None:
            if overruling := sorted(spec.given & OVERRULED):
                problems.warn(
                    join(spec.path, "parameters"),
                    f"no effect of {_given(settings)}: {' and '.join(overruling)} here goes before flags",
                )
                continue
            plugins[name] = _with_engine(spec, engine)
            if name in wanted:
                for one in shortfalls(engine, wanted[name], WORDS):
                    (problems.error if one.fatal else problems.warn)(WORDS.names.get(one.field, name), one.message)
        elif spec.kind is MetricsSource:  # not sources of other pages that are made of it
            fields = {field: value for field, value in page.items() if field not in spec.given}
            plugins[name] = replace(spec, parameters=replace(spec.parameters, **fields))
    _check_interval(config, settings, problems)
    problems.raise_if_any(config.origin)
    return replace(config, plugins=plugins, warnings=(*config.warnings, *problems.warnings))


def _check_interval(config: LoadedConfig, settings: CollectorSettings, problems: Problems) -> None:
    """Note where the collector's own interval, for sources that have none, is too long for what they bring."""
    stale = config.stale_metrics
    if settings.interval < stale.limit:
        return
    specs = (config.plugins[one.source] for one in config.sources if one.extractors)
    if any(issubclass(one.kind, MetricsSource) and not one.parameters.interval for one in specs):
        every = format_duration(settings.interval)
        problems.warn(
            "dataLayer.staleMetrics.after",
            f"{format_duration(stale.after)} isn't above {flag_of('interval')}, {every}: "
            "what is read is old before it is read again",
        )


def _with_engine(spec: PluginSpec, engine: EngineConfig) -> PluginSpec:
    return replace(spec, parameters=replace(spec.parameters, default_engine=engine.name, engine_configs=(engine,)))


def _page(settings: CollectorSettings) -> Mapping[str, str]:
    """Parameters of metrics sources."""
    given = {"scheme": settings.model_server_metrics_scheme, "path": settings.model_server_metrics_path}
    return {field: value for field, value in given.items() if value is not None}


def _given(settings: CollectorSettings) -> str:
    return " and ".join(flag_of(setting) for setting in METRIC_FLAGS if getattr(settings, setting) is not None)
