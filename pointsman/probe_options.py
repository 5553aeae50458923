"""The options of `pointsman probe`, and what its URL names: a server, one of its pages, or a saved page."""

from typing import Annotated
from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Meta, Struct

from pointsman.command import STDIN, Format
from services.collector.sources.http import check_path
from shared.model import join_host_port
from shared.quantities import PositiveDuration

PORTS = {"http": 80, "https": 443}
FORMS = "expected http://10.0.0.1:8000, 10.0.0.1:8000/metrics, file:page.txt or -"
PositiveSize = Annotated[int, Meta(gt=0, extra={"format": "size"})]


class Server(Struct, frozen=True, kw_only=True):
    """A server by its URL."""

    scheme: str
    host: str
    port: int
    path: str
    """With the query; empty if the URL has none."""

    def url(self, path: str) -> str:
        """The page that the URL names, by default this path."""
        return f"{self.scheme}://{join_host_port(self.host, self.port)}{self.path or path}"


class SavedPage(Struct, frozen=True, kw_only=True):
    """A file with a page."""

    path: str
    """`-` is standard input."""

    @property
    def name(self) -> str:
        return "standard input" if self.path == STDIN else self.path


class ProbeOptions(Struct, frozen=True, kw_only=True):
    """Scrapes a model server once, as the collector does, and shows what each extractor reads from the page. Flags of
    the collector, such as those that name metrics, go after --.

    Exits with 0 if every page was read and has all metrics that --config or flags name, otherwise with 1."""

    url: Annotated[
        str,
        Meta(
            description="the server, or one of its pages (default /metrics); file:PATH or - reads a saved page",
            extra={"argument": "URL"},
        ),
    ]
    config: Annotated[
        str,
        Meta(
            description="an EndpointPickerConfig with sources and extractors; each source uses its path if URL has none"
        ),
    ] = ""
    engine: Annotated[str, Meta(description="the engine of the server; default: recognized from the page")] = ""
    name: Annotated[
        str, Meta(description="[NAMESPACE/]NAME of the endpoint, by which an exporter's page tells pods apart")
    ] = "default/probed"
    label: Annotated[tuple[str, ...], Meta(description="labels of the endpoint, each KEY=VALUE; repeatable")] = ()
    node_address: Annotated[str, Meta(description="address of the endpoint's node")] = ""
    count: Annotated[int, Meta(ge=1, le=1_000_000, description="number of scrapes; rates need two")] = 1
    interval: Annotated[PositiveDuration, Meta(description="time between two scrapes")] = 1.0
    timeout: Annotated[PositiveDuration | None, Meta(description="limit of a scrape's duration; default: 1s")] = None
    page_limit: Annotated[PositiveSize | None, Meta(description="limit of a page's size; default: 16Mi")] = None
    verify: Annotated[bool, Meta(description="with https: verify the server's certificate")] = False
    ca_cert: Annotated[str, Meta(description="CA file to verify it with, instead of the system's")] = ""
    client_cert: Annotated[str, Meta(description="client certificate file")] = ""
    client_key: Annotated[str, Meta(description="key file of the client certificate")] = ""
    allow_experimental_plugins: Annotated[
        bool, Meta(description="accept plugin types of alpha stability in --config")
    ] = False
    format: Format = "text"

    @property
    def labels(self) -> dict[str, str]:
        return {name: value for name, _, value in (label.partition("=") for label in self.label)}

    def target(self, *, configured: bool) -> Server | SavedPage:
        """What the URL names. Raises ValueError for options that don't fit together."""
        for label in self.label:
            if not all(label.partition("=")):
                raise ValueError(f"--label: {label!r} isn't a label such as llm-d.ai/engine-type=vllm")
        target = parse_target(self.url)
        if isinstance(target, SavedPage) and self.count > 1:
            raise ValueError(f"--count: {self.count} with a saved page, which is read once")
        tls = [name for name in ("verify", "ca_cert", "client_cert", "client_key") if getattr(self, name)]
        if configured and tls:
            flags = ", ".join(f"--{name.replace('_', '-')}" for name in tls)
            raise ValueError(f"{flags}: the sources of a configuration have TLS settings of their own")
        return target


def parse_target(text: str) -> Server | SavedPage:
    """A URL with or without `http://`; `file:PATH`, or a path that begins with `/`, `./` or `../`; or `-`.

    Raises ValueError that names what is expected.
    """
    if text == STDIN or text.startswith(("/", "./", "../")):
        return SavedPage(path=text)
    if text.lower().startswith("file:"):
        path = text[len("file:") :]
        if not path:
            raise ValueError(f"URL: {text!r} names no file; {FORMS}")
        return SavedPage(path=unquote(urlsplit(text).path) if path.startswith("//") else path)
    parts = _split(text if "://" in text else f"http://{text}", text)
    if parts.scheme not in PORTS:
        raise ValueError(f"URL: {text!r}: {parts.scheme!r} isn't a supported scheme; {FORMS}")
    if parts.username is not None:
        raise ValueError(f"URL: {text!r}: a URL with a user isn't supported")
    host, port = parts.hostname, parts.port if parts.port is not None else PORTS[parts.scheme]
    if not host or not host.isascii() or " " in host or not 0 < port:
        raise ValueError(f"URL: {text!r} isn't the URL of a server; {FORMS}")
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path
    check_path(path or "/")
    return Server(scheme=parts.scheme, host=host, port=port, path="" if path == "/" else path)


def _split(url: str, text: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError for a port that isn't a number
    except ValueError as error:
        raise ValueError(f"URL: {text!r} isn't a URL: {error}; {FORMS}") from error
    return parts
