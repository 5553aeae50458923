"""Starts the tiers' processes of tests by forking one that has imported their modules: a tenth of the CPU time.

`install` has `subprocess.Popen`, and so asyncio, start `python -m pointsman TIER …` this way on Linux. The result is a
child of the caller like any other: it has its own id, session, working directory, environment, arguments, standard
streams, signals and exit code. What depends on how the interpreter starts, a test sees only with the mark
`command_line`, which has its processes started as everywhere else.

    python -m tests.zygote DESCRIPTOR     serves requests on a socket until its other end closes
"""

import atexit
import ctypes
import gc
import importlib
import inspect
import os
import pickle
import runpy
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from pointsman.cli import COMMANDS

ROOT = Path(__file__).parents[1]
TIERS = ("watcher", "collector", "picker", "console", "simulator")
LAZY = ("services.watcher.kubernetes.credentials",)
"""What a tier imports only when it runs."""
_MAX_REQUEST = 1 << 17
"""Bytes of a request: more than an environment has."""
_PR_SET_CHILD_SUBREAPER = 36

forking = True
"""Whether processes are forked, once `install` was called."""


class Start(Struct, frozen=True):
    """A process: `python -m pointsman ARGUMENTS`."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    session: bool
    before: Callable[[], object] | None
    """Popen's `preexec_fn`."""


def install() -> None:
    """Fork the tiers' processes from here on, while `forking`."""
    if sys.platform != "linux":
        return
    zygote = Zygote()
    execute: Any = subprocess.Popen._execute_child  # type: ignore[attr-defined]
    signature = inspect.signature(execute)

    def start(popen: Any, *given: Any, **named: Any) -> None:
        call = signature.bind(popen, *given, **named).arguments
        wanted = _wanted(call)
        if wanted is None:
            execute(popen, *given, **named)
            return
        streams = [call["p2cread"], call["c2pwrite"], call["errwrite"]]
        popen.pid = zygote.fork(wanted, [number if fd == -1 else fd for number, fd in enumerate(streams)])
        popen._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        popen._close_pipe_fds(*(call[name] for name in pipes))

    subprocess.Popen._execute_child = start  # type: ignore[attr-defined]


def _wanted(call: Mapping[str, Any]) -> Start | None:
    """None for what isn't to be forked."""
    match call["args"]:
        case [sys.executable, "-m", "pointsman", tier, *_] if forking and tier in TIERS:
            return Start(
                arguments=[str(word) for word in call["args"][3:]],
                environment=dict(os.environ if call["env"] is None else call["env"]),
                directory=os.fspath(call["cwd"] or Path.cwd()),
                session=call["start_new_session"],
                before=call["preexec_fn"],
            )
    return None


class Zygote:
    """The process that is forked, as a child of this one. It imports while this one goes on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.zygote", str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # a thread would not outlive the fork
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        atexit.register(process.wait)  # after the socket is closed, which is registered last
        atexit.register(self._socket.close)

    def fork(self, start: Start, streams: list[int]) -> int:
        """The id of a new child of this process, with these standard streams. Raises OSError as Popen does."""
        with self._lock:
            _subreaper(True)
            try:
                socket.send_fds(self._socket, [pickle.dumps(start)], streams)
                answer = self._socket.recv(_MAX_REQUEST)
            finally:
                _subreaper(False)
        if not answer:
            raise RuntimeError("tests.zygote has ended")
        given: int | OSError = pickle.loads(answer)
        if isinstance(given, OSError):
            raise given
        return given


def _subreaper(on: bool) -> None:
    """Whether this process becomes the parent of those below it that lose theirs."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def _serve(served: socket.socket) -> Start:
    """Fork for each request. Returns in the forked processes alone, each with what it is to be."""
    while True:
        request, descriptors, _, _ = socket.recv_fds(served, _MAX_REQUEST, 3)
        if not request:
            os._exit(0)  # the tests are over
        if child := os.fork():
            os.waitpid(child, 0)
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        child = os.getpid()
        if os.fork():
            os._exit(0)  # whereby the process that asked becomes the parent of the second
        while os.getppid() == child:
            time.sleep(0.0005)
        try:
            start: Start = pickle.loads(request)
            _become(start, descriptors)
        except OSError as error:
            served.send(pickle.dumps(error))
            os._exit(1)
        served.send(pickle.dumps(os.getpid()))
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        return start


def _become(start: Start, streams: list[int]) -> None:
    os.chdir(start.directory)
    if start.session:
        os.setsid()
    if start.before is not None:
        start.before()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.environ.clear()
    os.environ.update(start.environment)


def main() -> None:
    for module in (*(COMMANDS[tier][0] for tier in TIERS), *LAZY):
        importlib.import_module(module)
    gc.freeze()
    if (threads := len(os.listdir("/proc/self/task"))) != 1:
        raise RuntimeError(f"{threads} threads, of which only one would be in a fork")
    start = _serve(socket.socket(fileno=int(sys.argv[1])))
    sys.argv[1:] = start.arguments
    runpy.run_module("pointsman", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
