"""`pointsman probe URL`: scrapes a server once and says what every extractor makes of it, and of what it doesn't.

It is the collector's own client, sources and extractors that are at work, with the limits that the collector has unless
told otherwise: what is read here is read there, and what fails here fails there.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from yarl import URL

from pointsman.output import JSON, print_json
from pointsman.probe_arguments import checked, parser_of_probe, parted
from pointsman.probe_missing import Asked, Missing
from pointsman.probe_report import HINTS, Attribute, Extraction, Page, lines
from pointsman.probe_target import STDIN, Saved, Server
from services.collector.engines.flags import with_flags
from services.collector.extractors.core import CoreMetricsExtractor
from services.collector.extractors.models import ModelsExtractor
from services.collector.http.client import Client, Failure, ScrapeError
from services.collector.interfaces import PROMETHEUS_TEXT, Binding, Extractor, Poll, PollingSource
from services.collector.metrics_port import at_metrics_port
from services.collector.page.selection import Outcome
from services.collector.pipeline import Feed, build
from services.collector.settings import CollectorSettings
from services.collector.sources.http import HttpSource
from services.collector.sources.metrics import MetricsParameters, MetricsSource
from services.collector.sources.models import MODELS_JSON, ModelsParameters, ModelsSource
from shared.attributes import AttributeMap
from shared.config import load
from shared.config.problems import Invalid, Problem
from shared.model import Endpoint
from shared.plugin import Registry
from shared.service import parse, read_text

ENGINE_LABEL = "inference.networking.k8s.io/engine-type"
"""Read by every core extractor whose own `engineLabelKey` is empty."""


class Reading:
    """A source's extractors at work on one page after the other."""

    def __init__(self, feed: Feed, endpoint: Endpoint) -> None:
        self.feed = feed
        self._bound = [(one, one.bind(endpoint), AttributeMap()) for one in feed.extractors]
        self._asked = [Asked(extractor, binding) for extractor, binding, _ in self._bound]
        read_too = self._asked if feed.source.OUTPUT == PROMETHEUS_TEXT else []
        self._reader = feed.source.reader([*(binding for _, binding, _ in self._bound), *read_too])
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
        """Whether anything that was looked for is on the last page."""
        return any(one.outcome is Outcome.FOUND for _, binding, _ in self._bound for one in binding.findings())

    def missing(self, page: bytes) -> tuple[Missing, ...]:
        """What was asked for and isn't on the last page, given here once more."""
        return tuple(dict.fromkeys(one for asked in self._asked for one in asked.missing(page)))

    def __repr__(self) -> str:
        return f"<Reading {self.feed.source.name}, {self.pages} pages>"


def _extraction(
    extractor: Extractor, binding: Binding, attributes: AttributeMap, decide: Callable[[Binding], dict[str, str]]
) -> Extraction:
    values = {key.name: sample.value for key, sample in attributes.items()}
    return Extraction(
        extractor=extractor.name,
        decided=decide(binding),
        attributes=tuple(
            Attribute(
                name=one.attribute,
                specification=one.what,
                outcome=one.outcome.value,
                value=values.get(one.attribute),
            )
            for one in binding.findings()
        ),
    )


class Probe:
    """Reads what the arguments name."""

    def __init__(
        self,
        target: Server | Saved,
        feeds: Sequence[Feed],
        options: argparse.Namespace,
        settings: CollectorSettings,
        *,
        configured: bool,
    ) -> None:
        """`configured` says whether the feeds are those of a configuration, which ask where its sources say.

        Raises ValueError for an engine that no extractor knows.
        """
        self._target = target
        self._feeds = feeds
        self._options = options
        self._settings = settings
        self._configured = configured
        self._endpoint = self._make_endpoint()

    async def pages(self) -> list[Page]:
        """What was read, one after the other for each source."""
        match self._target:
            case Saved() as saved:
                return await self._one(saved.name, partial(_saved, saved), timed=False)
            case Server() as server:
                settings = self._settings
                client = Client(
                    self._options.timeout or settings.scrape_timeout,
                    self._options.page_limit or settings.page_limit,
                    settings.header_limit,
                )
                await client.open()
                try:
                    if server.path or not self._configured:
                        url = server.url("/metrics")
                        tls = self._asker.tls if isinstance(self._asker, HttpSource) else True
                        return await self._one(url, lambda: client.get(URL(url, encoded=True), tls))
                    return [page for feed in self._feeds for page in await self._own(feed, client)]
                finally:
                    await client.close()

    @property
    def _asker(self) -> PollingSource:
        """The source in whose name a page is asked for that all read."""
        return next((one.source for one in self._feeds if one.source.OUTPUT == PROMETHEUS_TEXT), self._feeds[0].source)

    async def _own(self, feed: Feed, client: Client) -> list[Page]:
        """What the source itself asks for."""
        try:
            url = feed.source.place(self._endpoint)
            fetch = feed.source.poller(self._endpoint, client)
        except ValueError as error:
            return [Page(source=feed.source.name, url=feed.source.name, ok=False, error=str(error))]
        return await self._repeat([feed], url, feed.source, fetch, by_format=False)

    async def _one(self, url: str, fetch: Poll, *, timed: bool = True) -> list[Page]:
        """One page, read by every source of its format."""
        return await self._repeat(self._feeds, url, self._asker, fetch, timed=timed)

    async def _repeat(
        self,
        feeds: Sequence[Feed],
        url: str,
        asker: PollingSource,
        fetch: Poll,
        *,
        timed: bool = True,
        by_format: bool = True,
    ) -> list[Page]:
        """Fetch the page as often as was asked for, or until that fails, and have all read it, or those sources whose
        format it has. After a failure what was read before it is told first."""
        readings = [Reading(feed, self._endpoint) for feed in feeds]
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
                failed = Page(source=asker.name, url=url, ok=False, scrapes=number, error=str(error), hint=hint)
                return [*(self._read(one, url, page, seconds, timed) for one in readings if one.pages), failed]
            seconds = time.monotonic() - at
            if by_format:
                readings = [one for one in readings if one.feed.source.OUTPUT == _format(page)]
            for reading in readings:
                await reading.read(page, at)
        if not readings:
            why = f"its format is {_format(page)}, which no source of the configuration gives"
            return [Page(source=asker.name, url=url, ok=False, bytes=len(page), error=why)]
        # a page that the sources share need not have what another one's page has
        concerned = [one for one in readings if one.found] or readings
        return [self._read(one, url, page, seconds, timed, asked=one in concerned) for one in readings]

    def _read(self, reading: Reading, url: str, page: Any, seconds: float, timed: bool, *, asked: bool = False) -> Page:
        """What was read of a page, and in how many seconds where that says anything. `asked` says whether it should
        have what was asked for."""
        return Page(
            source=reading.feed.source.name,
            url=url,
            ok=True,
            scrapes=reading.pages,
            bytes=_size(page),
            seconds=seconds if timed else msgspec.UNSET,
            extractions=reading.extractions(self._decided),
            missing=reading.missing(page) if asked and isinstance(page, bytes) else (),
        )

    def _decided(self, binding: Binding) -> dict[str, str]:
        decided = binding.describe()
        if self._options.engine and decided.get("engine_chosen_by") == "label":
            decided["engine_chosen_by"] = "--engine"
        return decided

    def _make_endpoint(self) -> Endpoint:
        labels = dict(self._options.label) | _engine_labels(self._options.engine, self._feeds)
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
        return f"<Probe {self._target} by {', '.join(feed.source.name for feed in self._feeds)}>"


def _engine_labels(engine: str, feeds: Iterable[Feed]) -> dict[str, str]:
    """The labels by which every core extractor takes the endpoint for one of this engine. Raises ValueError."""
    extractors = [one for feed in feeds for one in feed.extractors if isinstance(one, CoreMetricsExtractor)]
    if not engine:
        return {}
    if not extractors:
        raise ValueError("--engine: no core-metrics-extractor is fed by the configuration's sources")
    for extractor in extractors:
        known = extractor.parameters.engines()
        if engine not in known:
            raise ValueError(f"--engine: {engine!r} is no engine; known: {', '.join(sorted(known))}")
    return {one.parameters.engine_label_key or ENGINE_LABEL: engine for one in extractors}


async def _saved(saved: Saved) -> bytes:
    try:
        return await asyncio.to_thread(sys.stdin.buffer.read if saved.path == STDIN else Path(saved.path).read_bytes)
    except OSError as error:
        raise ScrapeError(Failure.ADDRESS, f"can't be read: {error.strerror or error}") from error


def _size(page: Any) -> int:
    """Bytes of an answer, where it is bytes."""
    return len(page) if isinstance(page, bytes) else 0


def _format(page: bytes) -> str:
    """What a page is: an object in JSON, or metrics as text."""
    return MODELS_JSON if page.lstrip()[:1] == b"{" else PROMETHEUS_TEXT


def _plain_feeds(options: argparse.Namespace, target: Server | Saved) -> list[Feed]:
    """What is read without a configuration: standard attributes, and lists of models. Raises ValueError."""
    trust: dict[str, Any] = {
        "insecure_skip_verify": not (options.verify or options.ca_cert),
        "ca_cert_path": options.ca_cert,
        "client_cert_path": options.client_cert,
        "client_key_path": options.client_key,
        "scheme": target.scheme if isinstance(target, Server) else "http",
    }
    return [
        Feed(MetricsSource(MetricsSource.TYPE, MetricsParameters(**trust)), (CoreMetricsExtractor("core"),)),
        Feed(ModelsSource(ModelsSource.TYPE, ModelsParameters(**trust)), (ModelsExtractor(ModelsExtractor.TYPE),)),
    ]


def _configured_feeds(path: str, settings: CollectorSettings, *, allow_experimental: bool) -> Sequence[Feed]:
    """What a collector with these settings polls by the configuration, or by the default one. Raises `Invalid`."""
    text = read_text(path, "--config", settings.max_file_size) if path else ""
    bounds = settings.config_bounds
    config = load(text, Registry.installed(), path, allow_experimental=allow_experimental, bounds=bounds)
    config = with_flags(config, settings)
    for warning in config.warnings:
        print(f"{path or 'default configuration'}: warning: {warning}", file=sys.stderr)
    feeds = build(config).feeds
    if not feeds:
        raise Invalid([Problem("dataLayer.sources", "no source that is polled feeds an extractor")], path)
    return feeds


def main(argv: Sequence[str]) -> int:
    """`pointsman probe`: 0 when every page was read and has what was asked for, else 1; 2 for a mistake in the
    arguments."""
    own, flags = parted(argv)
    parser = parser_of_probe()
    options = parser.parse_args(own)
    try:
        settings = parse(CollectorSettings, flags, {}, "pointsman probe URL --")
        path = options.config or settings.config_file
        configured = bool(path or flags)
        target = checked(options, configured=configured)
        if configured:
            experimental = options.allow_experimental_plugins or settings.allow_experimental_plugins
            feeds = _configured_feeds(path, settings, allow_experimental=experimental)
        else:
            feeds = _plain_feeds(options, target)
        probe = Probe(target, feeds, options, settings, configured=configured)
    except Invalid as error:
        print("\n".join(error.lines()), file=sys.stderr)
        return 1
    except ValueError as error:
        parser.error(str(error))
    try:
        pages = asyncio.run(probe.pages())
    except KeyboardInterrupt:
        return 130
    ok = all(page.ok and not page.missing for page in pages)
    if options.format == JSON:
        print_json({"ok": ok, "pages": pages})
    else:
        _print(pages)
    return 0 if ok else 1


def _print(pages: Iterable[Page]) -> None:
    for number, page in enumerate(pages):
        out = sys.stdout if page.ok else sys.stderr
        text = "\n".join(lines(page))
        print(f"\n{text}" if number and page.ok else text, file=out, flush=True)
        for one in page.missing:
            print(f"{page.url}: missing: {one}", file=sys.stderr)
