"""The stack that the settings of `pointsman up` describe."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from pointsman.local.stack import CONFIGURATION, ModelServer, StackPlan
from pointsman.up.settings import UpSettings
from shared.config import Invalid
from shared.config.problems import Problem
from shared.model import is_ip, join_host_port
from shared.service.settings import read_text

FORM = "expected http://10.0.0.11:8000"


def stack_plan(settings: UpSettings, token: str = "") -> StackPlan:
    """The plan of these settings; with `--allow-actions`, consoles require the token. Raises Invalid with every
    problem."""
    problems: list[Problem] = []
    if bool(settings.servers) == bool(settings.endpoints_file):
        problems.append(Problem("URL…", "name your model servers here or in --endpoints-file, and not in both"))
    if not is_ip(settings.host):
        problems.append(Problem("--host", f"{settings.host!r} isn't an IP address of this machine"))
    servers: dict[str, ModelServer] = {}
    for text in settings.servers:
        try:
            server = parse_server(text)
            if servers.setdefault(server.name, server) is not server:
                raise ValueError(f"{text!r} is named twice")
        except ValueError as error:
            problems.append(Problem("URL…", str(error)))
    for flag, name in (("--endpoints-file", settings.endpoints_file), ("--config-file", settings.config_file)):
        if name and not os.path.exists(name):
            problems.append(Problem(flag, f"{name!r} doesn't exist"))
    if problems:
        raise Invalid(problems)
    return StackPlan(
        simulators=(),
        servers=tuple(servers.values()),
        endpoints_file=Path(settings.endpoints_file).absolute() if settings.endpoints_file else None,
        configuration=None if settings.config_file else read_text(str(CONFIGURATION), "--config-file"),
        config_file=Path(settings.config_file).absolute() if settings.config_file else None,
        collectors=settings.collectors,
        pickers=settings.pickers,
        consoles=1,
        host=settings.host,
        port=settings.port,
        console_token=token if settings.allow_actions else "",
        usual_ports=True,
        flags={"picker": {"tracing": "true"}} if settings.tracing else {},
    )


def parse_server(text: str) -> ModelServer:
    """A model server by its URL, with or without `http://`; it is called by its address. Raises ValueError."""
    parts = urlsplit(text if "://" in text else f"http://{text}")
    try:
        host, port = parts.hostname or "", 80 if parts.port is None else parts.port
    except ValueError as error:
        raise ValueError(f"{text!r} isn't a URL: {error}; {FORM}") from error
    if parts.scheme != "http":
        raise ValueError(f"{text!r}: Envoy calls model servers over plain HTTP; {FORM}")
    if not host or not host.isascii() or any(char.isspace() for char in host) or not port:
        raise ValueError(f"{text!r} isn't the URL of a server; {FORM}")
    if parts.path not in ("", "/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f"{text!r} has more than an address and a port; {FORM}")
    return ModelServer(name=join_host_port(host, port), address=host, port=port)
