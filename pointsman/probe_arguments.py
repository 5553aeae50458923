"""The arguments of `pointsman probe`."""

import argparse
from collections.abc import Callable, Sequence

from pointsman.output import add_format
from pointsman.probe_target import Saved, Server, parse_target
from shared.quantities import parse_duration, parse_size


def parted(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own arguments, and the collector's flags behind `--`."""
    words = list(argv)
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def checked(options: argparse.Namespace, *, configured: bool) -> Server | Saved:
    """What the URL names. Raises ValueError for arguments that don't fit together."""
    target = parse_target(options.url)
    if isinstance(target, Saved) and options.count > 1:
        raise ValueError("--count: a saved page is read once")
    trust = {name: getattr(options, name) for name in ("verify", "ca_cert", "client_cert", "client_key")}
    if configured and any(trust.values()):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name, value in trust.items() if value)
        raise ValueError(f"{flags}: the sources of a configuration have TLS settings of their own")
    return target


def parser_of_probe() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pointsman probe",
        usage="pointsman probe [option …] URL [-- flag of pointsman collector …]",
        description="Scrape a model server once, as the collector does, and say what every extractor makes of it. "
        "Behind -- stand flags of the collector, such as those that name metrics.",
        epilog="Exits with 0 when every page was read and has all metrics that --config or flags name; else with 1, "
        "saying why.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "url",
        metavar="URL",
        help="the server, or a page of it (default /metrics); file:PATH or - reads a page that was saved",
    )
    parser.add_argument(
        "--engine", default="", help="the engine that the server runs; default: recognized from the page"
    )
    parser.add_argument(
        "--config",
        default="",
        metavar="FILE",
        help="an EndpointPickerConfig: its sources and extractors are used; without a path in URL, each source's own",
    )
    parser.add_argument(
        "--label",
        action="append",
        default=[],
        type=_label,
        metavar="KEY=VALUE",
        help="a label of the endpoint; repeatable",
    )
    parser.add_argument(
        "--name",
        default="default/probed",
        metavar="[NAMESPACE/]NAME",
        help="the endpoint's name, by which an exporter's page tells pods",
    )
    parser.add_argument("--node-address", default="", metavar="IP", help="the address of the endpoint's node")
    parser.add_argument("--count", type=_count, default=1, help="scrapes; rates need two (default 1)")
    parser.add_argument(
        "--interval", type=_duration, default=1.0, metavar="DURATION", help="time between two scrapes (default 1s)"
    )
    parser.add_argument("--timeout", type=_duration, metavar="DURATION", help="for a scrape (default 1s)")
    parser.add_argument("--page-limit", type=_size, metavar="SIZE", help="bytes of a page (default 16Mi)")
    parser.add_argument("--verify", action="store_true", help="with https: verify the server's certificate")
    parser.add_argument("--ca-cert", default="", metavar="FILE", help="the CA to verify it by, instead of the system's")
    parser.add_argument("--client-cert", default="", metavar="FILE", help="a certificate for the server to know us by")
    parser.add_argument("--client-key", default="", metavar="FILE", help="its key")
    parser.add_argument(
        "--allow-experimental-plugins", action="store_true", help="accept plugin types of alpha stability in --config"
    )
    add_format(parser)
    return parser


def _label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: a label such as llm-d.ai/engine-type=vllm is expected")
    return name, value


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1_000_000):
        raise argparse.ArgumentTypeError(f"{text!r}: a whole number from 1 is expected")
    return int(text)


def _duration(text: str) -> float:
    return _positive(text, parse_duration)


def _size(text: str) -> int:
    return int(_positive(text, parse_size))


def _positive(text: str, parse: Callable[[object], float]) -> float:
    try:
        value = parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: {error}") from error
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text!r} isn't above 0")
    return value
