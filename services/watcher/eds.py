"""Envoy's endpoint discovery by file: the pool's endpoints as a `DiscoveryResponse`, replaced by rename.

Envoy's `path_config_source` watches the file's directory for renames and applies a new file within milliseconds. The
content depends only on the endpoints and the cluster's name, so every watcher writes the same, and writes an unchanged
set once. Envoy routes by this file when pickers or NATS are down. So each watcher with `--eds-file` writes it, leader
or not: the file serves the Envoy on its own machine. A file that somebody else has written is replaced, but not that of
another watcher, which may know newer endpoints: two watchers would replace each other's for ever.
"""

import asyncio
import contextlib
import errno
import glob
import os
import secrets
import stat
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import structlog
import xxhash

from services.watcher.metrics import WatcherMetrics
from shared.config.problems import Invalid, Problem
from shared.model import HELPERS, ROLE, Endpoint
from shared.tasks import set_within

log = structlog.get_logger(__name__)

RETRY = 1.0
"""Seconds after a failed write until the next try."""
ABANDONED = 60.0
"""Seconds after which nobody writes a part of a file any more."""
MAX_FILE = 2**24
"""Bytes of a file of another watcher's, which is read: one of 10 000 endpoints has 2 MB."""
_RESPONSE_TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
_MODE = 0o644
"""Readable for Envoy, which runs as another user."""

Signature: TypeAlias = tuple[int, int, int, int]
"""What others change when they replace or rewrite a file, and renaming it doesn't: device, inode, size, when it was
modified (ns)."""


def render(endpoints: Iterable[Endpoint], cluster: str) -> bytes:
    """The file for these endpoints, ordered by id. Of several endpoints with one `address:port` the first is used.

    Envoy finishes the requests of a host that is DRAINING, and sends it no new ones. Servers that only help others have
    a lower priority: they get what pickers send them, and other requests only when there is nobody else.

    Source: envoy.service.discovery.v3.DiscoveryResponse, envoy.config.endpoint.v3.ClusterLoadAssignment.
    """
    unique: dict[tuple[str, int], Endpoint] = {}
    for endpoint in sorted(endpoints, key=lambda endpoint: endpoint.id):
        unique.setdefault((endpoint.address, endpoint.port), endpoint)
    groups: dict[bool, list[dict[str, Any]]] = {}
    for (address, port), endpoint in unique.items():
        host: dict[str, Any] = {"endpoint": {"address": {"socket_address": {"address": address, "port_value": port}}}}
        if endpoint.draining:
            host["health_status"] = "DRAINING"
        groups.setdefault(endpoint.labels.get(ROLE) in HELPERS, []).append(host)
    assignment = {
        "@type": _RESPONSE_TYPE,
        "cluster_name": cluster,
        "endpoints": [{"priority": at, "lb_endpoints": groups[helpers]} for at, helpers in enumerate(sorted(groups))],
    }
    response = {"version_info": _version(msgspec.json.encode(assignment)), "resources": [assignment]}
    return msgspec.json.format(msgspec.json.encode(response), indent=1) + b"\n"


def is_rendered(content: bytes) -> bool:
    """Whether it comes from `render`: its version is that of its resource."""
    try:
        response = msgspec.json.decode(content, type=_Response)
        [assignment] = response.resources
        return response.version_info == _version(msgspec.json.format(bytes(assignment), indent=-1))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


class _Response(msgspec.Struct):
    """No value of its resource is made: somebody else may have written it."""

    version_info: str
    resources: tuple[msgspec.Raw]


def _version(assignment: bytes) -> str:
    """Of compact JSON."""
    return xxhash.xxh3_64_hexdigest(assignment)


def _signature(status: os.stat_result) -> Signature:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class EdsFile:
    """The file on disk. `write` runs in a worker thread."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._content: bytes | None = None
        self._seen: Signature | None = None
        """Of the file when it was last written or read."""
        self.writes = 0

    def write(self, content: bytes) -> bool:
        """Replace the file unless it has this content, or had it until another watcher wrote it. Returns whether it was
        replaced.

        Raises OSError; the file is then unchanged.
        """
        if self._content is None:
            self._clean()
        written = not self._may_stay(content)
        if written:
            self._seen = self._replace(content)
            self.writes += 1
        self._content = content
        return written

    def _may_stay(self, content: bytes) -> bool:
        """Whether the file has this content, or is another watcher's and newer."""
        unchanged = content == self._content
        try:
            status = self._path.stat()
            signature = _signature(status)
            if unchanged and signature == self._seen:
                return True
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_FILE:
                return False
            found = self._path.read_bytes()
        except OSError:
            return False  # it doesn't exist or isn't readable: writing shows which
        if found == content or (unchanged and is_rendered(found)):
            self._seen = signature
            return True
        return False

    def check(self) -> None:
        """Raises OSError if the file's directory doesn't exist or isn't writable."""
        if not self._path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"no directory {str(self._path.parent)!r}")
        if not os.access(self._path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"no permission to write in {str(self._path.parent)!r}")

    def exists(self) -> bool:
        return self._path.exists()

    def _clean(self) -> None:
        """Remove what watchers have left that were killed while they wrote."""
        for part in self._path.parent.glob(glob.escape(self._part("").name) + "[0-9a-f]" * 8):
            with contextlib.suppress(OSError):
                if time.time() - part.stat().st_mtime > ABANDONED:
                    part.unlink()

    def _part(self, name: str) -> Path:
        return self._path.with_name(f".{self._path.name}.{name}")

    def _replace(self, content: bytes) -> Signature:
        """Replace the whole file at once, so that nobody reads a part of it. Raises OSError."""
        part = self._part(secrets.token_hex(4))
        handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), _MODE)
                os.fsync(file.fileno())
                signature = _signature(os.fstat(file.fileno()))
            os.replace(part, self._path)
            return signature
        except BaseException:
            with contextlib.suppress(OSError):
                part.unlink()
            raise


class EdsWriter:
    """Keeps `path` equal to the endpoints, for the Envoy cluster `cluster`. Checks every `interval` seconds that the
    file is there and that a watcher has written it."""

    def __init__(self, path: str, cluster: str, interval: float, metrics: WatcherMetrics) -> None:
        self._path = path
        self._cluster = cluster
        self._interval = interval
        self._metrics = metrics
        self._file = EdsFile(path)
        self._endpoints: Collection[Endpoint] = ()
        self._wake = asyncio.Event()
        self._created = False
        """Whether `create` has written the file."""
        self.error = ""
        """Why the file is out of date; empty if it isn't."""

    def update(self, endpoints: Collection[Endpoint]) -> None:
        """Set what `run` writes to the file. A collection that has changed in place has to be set again."""
        self._endpoints = endpoints
        self._wake.set()

    async def create(self) -> None:
        """Write a file without endpoints if there is none: Envoy doesn't start without a file, and the endpoints may be
        unknown for a while. Raises `Invalid` if the file can't be written."""
        try:
            await asyncio.to_thread(self._file.check)
            if not self._file.exists():
                await self._write()
                self._created = True
        except OSError as error:
            raise self._unwritable(error) from error

    async def start(self, *, replace: bool) -> None:
        """Write the file; unless `replace`, only if `create` has written it. Raises `Invalid` if that fails."""
        try:
            if replace or self._created:
                await self._write()
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> Invalid:
        return Invalid([Problem("--eds-file", f"{self._path!r} can't be written: {error.strerror or error}")])

    async def run(self) -> None:
        """Write after each `update`, and whenever somebody has removed or replaced the file."""
        while True:
            await set_within(self._wake, min(RETRY, self._interval) if self.error else self._interval)
            self._wake.clear()
            try:
                await self._write()
            except OSError as error:
                self._metrics.eds_failures.inc()
                if self.error != str(error):
                    log.error("eds.write.failed", file=self._path, reason=str(error))
                self.error = str(error)

    async def _write(self) -> None:
        endpoints = tuple(self._endpoints)
        if await asyncio.to_thread(lambda: self._file.write(render(endpoints, self._cluster))):
            self._metrics.eds_writes.inc()
            log.info("eds.written", file=self._path, endpoints=len(endpoints))
        self.error = ""

    def state(self) -> dict[str, object]:
        """For `/debug/state`."""
        return {"file": self._path, "cluster": self._cluster, "writes": self._file.writes, "error": self.error or None}

    def __repr__(self) -> str:
        return f"<EdsWriter {self._path} {self.error or 'up to date'}>"
