"""What `pointsman probe` is pointed at: a server, one page of it, or a page that somebody has saved."""

from urllib.parse import SplitResult, unquote, urlsplit

from msgspec import Struct

from services.collector.sources.http import check_path
from shared.model import join_host_port

STDIN = "-"
PORTS = {"http": 80, "https": 443}
FORMS = "http://10.0.0.1:8000, 10.0.0.1:8000/metrics, file:page.txt or - is expected"


class Server(Struct, frozen=True, kw_only=True):
    """A server by its URL."""

    scheme: str
    host: str
    port: int
    path: str
    """With the query; empty where the URL has none."""

    def url(self, path: str) -> str:
        """The page that the URL names, or else that of this path."""
        return f"{self.scheme}://{join_host_port(self.host, self.port)}{self.path or path}"


class Saved(Struct, frozen=True, kw_only=True):
    """A file with a page."""

    path: str
    """`-` is standard input."""

    @property
    def name(self) -> str:
        return "standard input" if self.path == STDIN else self.path


def parse_target(text: str) -> Server | Saved:
    """A URL, with or without its `http://`; `file:` and a path, or a path that begins with `/`, `./` or `../`; `-`.

    Raises ValueError that says what would be right.
    """
    if text == STDIN or text.startswith(("/", "./", "../")):
        return Saved(path=text)
    if text.lower().startswith("file:"):
        path = text[len("file:") :]
        return Saved(path=unquote(urlsplit(text).path) if path.startswith("//") else _named(path, text))
    parts = _split(text if "://" in text else f"http://{text}", text)
    if parts.scheme not in PORTS:
        raise ValueError(f"{text!r}: {parts.scheme!r} is no scheme that is read; {FORMS}")
    if parts.username is not None:
        raise ValueError(f"{text!r}: a user in a URL isn't sent")
    host, port = parts.hostname, parts.port if parts.port is not None else PORTS[parts.scheme]
    if not host or not host.isascii() or " " in host or not 0 < port:
        raise ValueError(f"{text!r} is no URL of a server; {FORMS}")
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path
    check_path(path or "/")
    return Server(scheme=parts.scheme, host=host, port=port, path="" if path == "/" else path)


def _split(url: str, text: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for one that is no number
    except ValueError as error:
        raise ValueError(f"{text!r} is no URL: {error}; {FORMS}") from error
    return parts


def _named(path: str, text: str) -> str:
    if not path:
        raise ValueError(f"{text!r} names no file; {FORMS}")
    return path
