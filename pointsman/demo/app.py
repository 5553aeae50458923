"""`pointsman demo`: settings, the directory for files and logs, signals, and error messages."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from pointsman.demo.settings import DemoSettings
from shared.config import Invalid
from shared.service import parse, report

if TYPE_CHECKING:
    from pointsman.demo.demo import Demo
    from pointsman.demo.screen import Screen

RUN_DIRECTORY = Path(".run")
EXTRA = ("rich", "httpx")
"""Imports of the demo that the services don't need."""


def main(argv: Sequence[str]) -> int:
    """`pointsman demo`: 0 if no request failed, 130 after an interrupt before the first request, otherwise 1."""
    try:
        settings = parse(DemoSettings, argv, os.environ, "pointsman demo")
    except Invalid as error:
        return report(error)
    try:
        return asyncio.run(_main(settings))
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        return _refuse(f"{error.name} is missing; `pip install 'pointsman[local]'` installs it")
    except BrokenPipeError:  # nobody reads the output; Python would print to it once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


async def _main(settings: DemoSettings) -> int:
    from pointsman.demo.demo import BAD, INTERRUPTED, Demo, DemoError
    from pointsman.demo.screen import Screen
    from pointsman.local.binaries import BinaryMissing
    from pointsman.local.envoy import ConfigurationError
    from pointsman.local.ports import PortTaken
    from pointsman.local.process import ProcessError

    try:
        directory = make_directory(RUN_DIRECTORY)
    except OSError as error:
        return _refuse(f"cannot create a directory for files and logs: {error}")
    screen = Screen(plain=settings.plain)
    code = BAD
    with _logs(directory / "demo.log"):
        demo = Demo(settings, screen, directory)
        try:
            with _signals(demo, screen):
                code = await demo.run()
        except asyncio.CancelledError:  # Ctrl-C before the handler was installed; nothing has been started
            screen.close()
            code = INTERRUPTED
        except (PortTaken, BinaryMissing, ConfigurationError, ProcessError, DemoError) as error:
            screen.close()
            _refuse(str(error))
    if settings.keep or code not in (0, INTERRUPTED):
        print(f"Files and logs are in {directory}", flush=True)
    else:
        remove_directory(directory)
    return code


def make_directory(base: Path) -> Path:
    """A new directory in `base`, or in the system's temporary directory if `base` isn't writable. Raises OSError."""
    try:
        base.mkdir(exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="demo-", dir=base)).absolute()
    except OSError:
        return Path(tempfile.mkdtemp(prefix="pointsman-demo-"))


def remove_directory(directory: Path) -> None:
    """Remove it, and the parent if the demo has created it and it is empty."""
    shutil.rmtree(directory, ignore_errors=True)
    if directory.parent.name == RUN_DIRECTORY.name:
        with contextlib.suppress(OSError):  # it isn't empty
            directory.parent.rmdir()


def _refuse(text: str) -> int:
    print(f"pointsman demo: {text}", file=sys.stderr, flush=True)
    return 1


@contextlib.contextmanager
def _logs(path: Path) -> Iterator[None]:
    """Log to a file: the screen belongs to the demo."""
    with path.open("a", encoding="utf-8") as file:
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(file))
        try:
            yield
        finally:
            structlog.reset_defaults()


@contextlib.contextmanager
def _signals(demo: "Demo", screen: "Screen") -> Iterator[None]:
    """The first signal ends the demo in order, the second one kills everything."""
    loop = asyncio.get_running_loop()
    seen = 0

    def on_signal(number: int) -> None:
        nonlocal seen
        seen += 1
        if seen == 1:
            screen.line("Interrupted; stopping in order. A second interrupt kills everything.")
            demo.stop()
            return
        demo.kill()
        screen.close()
        screen.line(f"Killed everything; files and logs are in {demo.directory}")
        os._exit(128 + number)

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
