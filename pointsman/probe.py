"""`pointsman probe URL`: scrapes a server once and shows what each extractor makes of the page.

The collector's own client, sources, extractors and default limits do the work: what succeeds here succeeds there, and
what fails here fails there.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from yarl import URL

from pointsman.command import STDIN, parse_options, print_json, refuse
from pointsman.output import print_lines
from pointsman.probe_missing import MissingMetric, RequestedMetrics
from pointsman.probe_options import ProbeOptions, SavedPage, Server
from pointsman.probe_report import HINTS, Attribute, Extraction, Page, lines
from services.collector.engines.flags import with_flags
from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.models import ModelsExtractor
from services.collector.http.client import Client, Failure, ScrapeError
from services.collector.interfaces import PROMETHEUS_TEXT, Binding, Extractor, Poll, PollingSource
from services.collector.metrics_port import at_metrics_port
from services.collector.page.selection import Outcome
from services.collector.pipeline import PolledSource, build
from services.collector.settings import CollectorSettings
from services.collector.sources.http import HttpSource
from services.collector.sources.metrics import MetricsParameters, MetricsSource
from services.collector.sources.models import MODELS_JSON, ModelsParameters, ModelsSource
from shared.attributes import AttributeMap
from shared.config import load
from shared.config.problems import Invalid, Problem
from shared.model import Endpoint
from shared.plugin import Registry
from shared.service.settings import parse, read_text, report

ENGINE_LABEL = "inference.networking.k8s.io/engine-type"
"""The label that names the engine for core extractors without an `engineLabelKey`."""


class SourceReader:
    """Runs a source's extractors on one page after the other."""

    def __init__(self, polled: PolledSource, endpoint: Endpoint) -> None:
        self.polled = polled
        self._bound = [(extractor, extractor.bind(endpoint), AttributeMap()) for extractor in polled.extractors]
        self._requested = [RequestedMetrics(extractor, binding) for extractor, binding, _ in self._bound]
        further = self._requested if polled.source.OUTPUT == PROMETHEUS_TEXT else []
        self._reader = polled.source.reader([*(binding for _, binding, _ in self._bound), *further])
        self.pages = 0

    async def read(self, page: Any, at: float) -> None:
        await self._reader.read(page, at)
        for _, binding, attributes in self._bound:
            binding.store(attributes, at)
        self.pages += 1

    def extractions(self, decide: Callable[[Binding], dict[str, str]]) -> tuple[Extraction, ...]:
        return tuple(_extraction(*bound, decide) for bound in self._bound)

    @property
    def found(self) -> bool:
        """Whether the last page has anything that an extractor reads."""
        findings = (finding for _, binding, _ in self._bound for finding in binding.findings())
        return any(finding.outcome is Outcome.FOUND for finding in findings)

    def missing(self, page: bytes) -> tuple[MissingMetric, ...]:
        """Requested metrics that the last page, passed again, doesn't have."""
        return tuple(dict.fromkeys(metric for requested in self._requested for metric in requested.missing(page)))

    def __repr__(self) -> str:
        return f"<SourceReader {self.polled.source.name}, {self.pages} pages>"


def _extraction(
    extractor: Extractor, binding: Binding, attributes: AttributeMap, decide: Callable[[Binding], dict[str, str]]
) -> Extraction:
    values = {key.name: sample.value for key, sample in attributes.items()}
    return Extraction(
        extractor=extractor.name,
        decided=decide(binding),
        attributes=tuple(
            Attribute(
                name=finding.attribute,
                specification=finding.what,
                outcome=finding.outcome.value,
                value=values.get(finding.attribute),
            )
            for finding in binding.findings()
        ),
    )


class Probe:
    """Reads the pages that the options name."""

    def __init__(
        self,
        options: ProbeOptions,
        target: Server | SavedPage,
        sources: Sequence[PolledSource],
        settings: CollectorSettings,
        *,
        configured: bool,
    ) -> None:
        """`configured`: the sources are those of a configuration, with paths of their own.

        Raises ValueError for an engine that no extractor knows.
        """
        self._target = target
        self._sources = sources
        self._options = options
        self._settings = settings
        self._configured = configured
        self._endpoint = self._make_endpoint()

    async def pages(self) -> list[Page]:
        """A page for each source that read one."""
        main = next((polled.source for polled in self._sources if polled.source.OUTPUT == PROMETHEUS_TEXT), None)
        main = main or self._sources[0].source
        if isinstance(self._target, SavedPage):
            return await self._scrape(self._sources, self._target.name, main, partial(_read_saved, self._target), False)
        settings = self._settings
        client = Client(
            self._options.timeout or settings.scrape_timeout,
            self._options.page_limit or settings.page_limit,
            settings.header_limit,
        )
        try:
            if self._configured and not self._target.path:
                return [page for polled in self._sources for page in await self._scrape_source(polled, client)]
            url = self._target.url("/metrics")
            tls = main.tls if isinstance(main, HttpSource) else True
            return await self._scrape(self._sources, url, main, lambda: client.get(URL(url, encoded=True), tls))
        finally:
            await client.close()

    async def _scrape_source(self, polled: PolledSource, client: Client) -> list[Page]:
        """Scrape what a configuration's source scrapes of an endpoint."""
        source = polled.source
        try:
            url, fetch = source.place(self._endpoint), source.poller(self._endpoint, client)
        except ValueError as error:
            return [Page(source=source.name, url=source.name, ok=False, error=str(error))]
        return await self._scrape([polled], url, source, fetch, any_format=True)

    async def _scrape(
        self,
        sources: Sequence[PolledSource],
        url: str,
        source: PollingSource,
        fetch: Poll,
        timed: bool = True,
        any_format: bool = False,
    ) -> list[Page]:
        """Fetch a page `--count` times or until that fails. The sources of its format read it, or with `any_format`
        all. After a failure, the pages before it come first."""
        readers = [SourceReader(polled, self._endpoint) for polled in sources]
        page: Any = b""
        seconds = 0.0
        for number in range(self._options.count):
            if number:
                await asyncio.sleep(self._options.interval)
            at = time.monotonic()
            try:
                page = await fetch()
            except ScrapeError as error:
                hint = HINTS.get(error.kind, "")
                failed = Page(source=source.name, url=url, ok=False, scrapes=number, error=str(error), hint=hint)
                return [*(self._read(each, url, page, seconds, timed) for each in readers if each.pages), failed]
            seconds = time.monotonic() - at
            if not any_format:
                readers = [reader for reader in readers if reader.polled.source.OUTPUT == _format(page)]
            for reader in readers:
                await reader.read(page, at)
        if not readers:
            why = f"its format is {_format(page)}, which no source of the configuration gives"
            return [Page(source=source.name, url=url, ok=False, bytes=len(page), error=why)]
        # Of the sources that share a page, some read nothing of it: nothing is missing for these.
        concerned = [reader for reader in readers if reader.found] or readers
        return [self._read(each, url, page, seconds, timed, complete=each in concerned) for each in readers]

    def _read(
        self, reader: SourceReader, url: str, page: Any, seconds: float, timed: bool, *, complete: bool = False
    ) -> Page:
        """What was read of a page, and in how many seconds if it was `timed`. `complete`: the page should have all
        requested metrics."""
        return Page(
            source=reader.polled.source.name,
            url=url,
            ok=True,
            scrapes=reader.pages,
            bytes=len(page) if isinstance(page, bytes) else 0,
            seconds=seconds if timed else msgspec.UNSET,
            extractions=reader.extractions(self._decided),
            missing=reader.missing(page) if complete and isinstance(page, bytes) else (),
        )

    def _decided(self, binding: Binding) -> dict[str, str]:
        decided = binding.describe()
        if self._options.engine and decided.get("engine_chosen_by") == "label":
            decided["engine_chosen_by"] = "--engine"
        return decided

    def _make_endpoint(self) -> Endpoint:
        labels = self._options.labels | _engine_labels(self._options.engine, self._sources)
        namespace, _, name = self._options.name.rpartition("/")
        server = self._target if isinstance(self._target, Server) else None
        endpoint = Endpoint(
            id=self._options.name,
            name=name,
            namespace=namespace or "default",
            address=server.host if server else "",
            port=server.port if server else 0,
            labels=labels,
            node_address=self._options.node_address,
        )
        return at_metrics_port({endpoint.id: endpoint}, None, self._settings.model_server_metrics_port)[endpoint.id]

    def __repr__(self) -> str:
        return f"<Probe {self._target} by {', '.join(polled.source.name for polled in self._sources)}>"


def _engine_labels(engine: str, sources: Iterable[PolledSource]) -> dict[str, str]:
    """The labels that make every core extractor choose this engine. Raises ValueError."""
    extractors = [
        extractor
        for polled in sources
        for extractor in polled.extractors
        if isinstance(extractor, CoreMetricsExtractor)
    ]
    if not engine:
        return {}
    if not extractors:
        raise ValueError(f"--engine: {engine!r}, but no source of the configuration feeds a core-metrics-extractor")
    for extractor in extractors:
        known = extractor.parameters.engines()
        if engine not in known:
            raise ValueError(f"--engine: {engine!r} isn't a known engine; known: {', '.join(sorted(known))}")
    return {extractor.parameters.engine_label_key or ENGINE_LABEL: engine for extractor in extractors}


async def _read_saved(saved: SavedPage) -> bytes:
    try:
        return await asyncio.to_thread(sys.stdin.buffer.read if saved.path == STDIN else Path(saved.path).read_bytes)
    except OSError as error:
        raise ScrapeError(Failure.ADDRESS, f"can't be read: {error.strerror or error}") from error


def _format(page: bytes) -> str:
    """What a page is: an object in JSON, or metrics as text."""
    return MODELS_JSON if page.lstrip()[:1] == b"{" else PROMETHEUS_TEXT


def _default_sources(options: ProbeOptions, target: Server | SavedPage) -> list[PolledSource]:
    """What is read without a configuration: standard attributes, and lists of models. Raises ValueError."""
    tls: dict[str, Any] = {
        "insecure_skip_verify": not (options.verify or options.ca_cert),
        "ca_cert_path": options.ca_cert,
        "client_cert_path": options.client_cert,
        "client_key_path": options.client_key,
        "scheme": target.scheme if isinstance(target, Server) else "http",
    }
    return [
        PolledSource(MetricsSource(MetricsSource.TYPE, MetricsParameters(**tls)), (CoreMetricsExtractor("core"),)),
        PolledSource(
            ModelsSource(ModelsSource.TYPE, ModelsParameters(**tls)), (ModelsExtractor(ModelsExtractor.TYPE),)
        ),
    ]


def _configured_sources(path: str, settings: CollectorSettings, *, allow_experimental: bool) -> Sequence[PolledSource]:
    """What a collector with these settings polls by the configuration, or by the default one. Raises `Invalid`."""
    text = read_text(path, "--config", settings.max_file_size) if path else ""
    bounds = settings.config_bounds
    config = load(text, Registry.installed(), path, allow_experimental=allow_experimental, bounds=bounds)
    config = with_flags(config, settings)
    for warning in config.warnings:
        print(f"{path or 'default configuration'}: warning: {warning}", file=sys.stderr)
    sources = build(config).sources
    if not sources:
        raise Invalid([Problem("dataLayer.sources", "no polled source feeds an extractor")], path)
    return sources


def main(argv: Sequence[str]) -> int:
    """`pointsman probe`: 0 if every page was read and has all requested metrics, else 1; 2 for wrong options."""
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    own, flags = words[:end], words[end + 1 :]
    options = parse_options(ProbeOptions, own, "probe")
    try:
        settings = parse(CollectorSettings, flags, {}, "pointsman probe URL --")
        path = options.config or settings.config_file
        configured = bool(path or flags)
        target = options.target(configured=configured)
        if configured:
            experimental = options.allow_experimental_plugins or settings.allow_experimental_plugins
            sources = _configured_sources(path, settings, allow_experimental=experimental)
        else:
            sources = _default_sources(options, target)
        probe = Probe(options, target, sources, settings, configured=configured)
    except Invalid as error:
        return report(error)
    except ValueError as error:
        refuse(error)
    pages = asyncio.run(probe.pages())
    ok = all(page.ok and not page.missing for page in pages)
    if options.format == "json":
        print_json({"ok": ok, "pages": pages})
    else:
        _print(pages)
    return 0 if ok else 1


def _print(pages: Iterable[Page]) -> None:
    for number, page in enumerate(pages):
        print_lines(["", *lines(page)] if number and page.ok else lines(page), error=not page.ok)
        for metric in page.missing:
            print_lines([f"{page.url}: missing: {metric}"], error=True)
