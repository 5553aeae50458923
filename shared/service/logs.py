"""Logs: one event a line on stderr, JSON or console, both ours and those of libraries."""

import logging
import sys
from io import StringIO
from typing import Literal, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, Processor, WrappedLogger

from shared.printable import printable

_TALKATIVE = ("uvicorn", "watchfiles", "nats", "asyncio")
"""Libraries that log routine work at the level info."""
_REQUESTS = "uvicorn.error"
"""A logger that warns about each request that isn't HTTP; anybody who reaches a port can send many of these."""


def configure(level: str, form: Literal["json", "console"], **bound: str) -> None:
    """Set up logging for the process; `bound` values (tier, id) are on every line, of every logger and thread."""

    def bind(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {**bound, **event}

    shared: list[Processor] = [
        bind,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    last: list[Processor]
    if form == "json":
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        last = [
            _make_printable,
            structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_write_traceback),
        ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))
    logging.getLogger(_REQUESTS).setLevel(max(logging.ERROR, root.level))


def _make_printable(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """What isn't text is rendered by its repr, which is printable."""
    return {name: printable(value) if isinstance(value, str) else value for name, value in event.items()}


def _write_traceback(target: TextIO, error: ExcInfo) -> None:
    """Not the renderer's own choice where `rich` is installed: that prints local variables, and so passwords."""
    written = StringIO()
    structlog.dev.plain_traceback(written, error)
    target.write("\n".join(map(printable, written.getvalue().split("\n"))))
