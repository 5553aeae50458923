"""The collector's metric flags: they define a default engine and the address of the metrics page.

The Go EPP has these flags. Engines of a core extractor and parameters of a metrics source in the configuration take
precedence.
"""

from msgspec.structs import replace

from services.collector.engines.builtin import BUILT_IN, VLLM
from services.collector.engines.configs import EngineConfig
from services.collector.engines.sufficiency import FieldNames, missing_attributes
from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.core.parameters import FLAT_NAMES
from services.collector.page.spec import parse_spec
from services.collector.settings import METRIC_FLAGS, CollectorSettings
from services.collector.sources.metrics import MetricsSource
from shared.config.demand import demands
from shared.config.loaded import LoadedConfig
from shared.config.problems import Problems, join
from shared.quantities import format_duration
from shared.service.flags import flag_of

NAME = "flags"
"""The name of the flags' engine."""
PRECEDENT = frozenset({"defaultEngine", "engineConfigs", *FLAT_NAMES})
"""Parameters of a core extractor that take precedence over the flags."""

FIELD_NAMES = FieldNames(
    names={field: flag_of(setting) for setting, field in METRIC_FLAGS.items()}, off=lambda name: f'{name}=""'
)


def flags_engine(settings: CollectorSettings) -> EngineConfig | None:
    """The engine that the flags define; None without flags.

    It extends the built-in engine that has all of the given metric names, if there is one; vllm if flags only switch
    metrics off.
    """
    given = {field: text for setting, field in METRIC_FLAGS.items() if (text := getattr(settings, setting)) is not None}
    if not given:
        return None
    names = [spec.name for text in given.values() if (spec := parse_spec(text)) is not None]
    bases = [engine for engine in BUILT_IN if names and all(name.startswith(engine.prefixes) for name in names)]
    base = bases[0].name if bases else "" if names else VLLM.name
    return EngineConfig(name=NAME, extends=base, **given)


def with_flags(config: LoadedConfig, settings: CollectorSettings) -> LoadedConfig:
    """The configuration with the flags applied.

    Raises `Invalid`, with the flags to add, when the flags' engine doesn't provide what plugins require.
    """
    problems = Problems()
    engine = flags_engine(settings)
    page = {"scheme": settings.model_server_metrics_scheme, "path": settings.model_server_metrics_path}
    plugins = dict(config.plugins)
    demanded = demands(config.plugins, config.sources, config.inputs, config.stale_metrics)
    for name, spec in config.plugins.items():
        if issubclass(spec.kind, CoreMetricsExtractor) and engine is not None:
            if precedent := sorted(spec.given & PRECEDENT):
                flags = " and ".join(flag_of(name) for name in METRIC_FLAGS if getattr(settings, name) is not None)
                why = f"no effect of {flags}: overridden by {' and '.join(precedent)} here"
                problems.warn(join(spec.path, "parameters"), why)
                continue
            parameters = replace(spec.parameters, default_engine=engine.name, engine_configs=(engine,))
            plugins[name] = replace(spec, parameters=parameters)
            if name in demanded:
                for missing in missing_attributes(engine, demanded[name], FIELD_NAMES):
                    report = problems.error if missing.fatal else problems.warn
                    report(FIELD_NAMES.names.get(missing.field, name), missing.message)
        elif spec.kind is MetricsSource:  # not its subclasses, which read other pages
            fields = {field: value for field, value in page.items() if value is not None and field not in spec.given}
            plugins[name] = replace(spec, parameters=replace(spec.parameters, **fields))
    _check_interval(config, settings, problems)
    problems.raise_if_any(config.origin)
    return replace(config, plugins=plugins, warnings=(*config.warnings, *problems.warnings))


def _check_interval(config: LoadedConfig, settings: CollectorSettings, problems: Problems) -> None:
    """Warn when the collector's interval, for sources without one, makes values stale."""
    stale = config.stale_metrics
    if settings.interval < stale.limit:
        return
    specs = (config.plugins[source.source] for source in config.sources if source.extractors)
    if any(issubclass(spec.kind, MetricsSource) and not spec.parameters.interval for spec in specs):
        every = format_duration(settings.interval)
        problems.warn(
            "dataLayer.staleMetrics.after",
            f"{format_duration(stale.after)} isn't above {flag_of('interval')}, {every}: "
            "values become stale before the next scrape",
        )
