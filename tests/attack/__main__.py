"""`make attack`: what hostile clients, proxies, model servers, messages and files do to a live system.

    python -m tests.attack [--seed N] [--seconds S] [--only FRONT[.ACT]]

Prints the acts, and the figures beside their bounds. Exits with 1 if something broke.
"""

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import tempfile
from pathlib import Path

import structlog

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")  # read when grpc is imported: its threads start in no child

from tests.attack.run import run

QUIET = 0.1
"""The time without an attack, for comparison, as a share of the attack's; some seconds at least."""


PR_SET_PDEATHSIG = 1


def lead_session() -> None:
    """Leaves the terminal's session, whose priority couldn't be raised again, and ends with the parent all the same."""
    with contextlib.suppress(PermissionError, AttributeError, OSError):  # it leads one, or this isn't Linux
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.attack", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1, help="decides the acts and their order (default 1)")
    parser.add_argument("--seconds", type=float, default=200, help="length of the attack (default 200)")
    parser.add_argument("--only", default="", help="one front, or one act of it: bus, bus.epochs")
    parser.add_argument("--directory", type=Path, help="where the processes' files and logs stay")
    options = parser.parse_args()
    lead_session()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with tempfile.TemporaryDirectory() as temporary:
        directory = options.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        quiet = max(QUIET * options.seconds, 5.0)
        outcome = asyncio.run(run(options.seed, directory, seconds=options.seconds, quiet=quiet, only=options.only))
    for line, kept in outcome.lines:
        print(line if kept else f"BROKEN  {line}")
    return int(not all(kept for _, kept in outcome.lines))


if __name__ == "__main__":
    sys.exit(main())
