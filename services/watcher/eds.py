"""Envoy's endpoint discovery by file: the pool's endpoints as a `DiscoveryResponse`, replaced by rename.

Envoy's `path_config_source` watches the file's directory for renames and applies a new file within milliseconds. The
text depends on nothing but the endpoints and the cluster's name, so every watcher writes the same, and an unchanged set
is not written again. Envoy routes by this file when pickers or NATS are gone, so it is written by every watcher that
has `--eds-file`, leader or not: the file serves the Envoy of its own machine.
"""

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import msgspec
import xxhash

from shared.model import Endpoint

_RESPONSE_TYPE = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
_MODE = 0o644
"""Readable for Envoy, which runs as another user."""


def render(endpoints: Iterable[Endpoint], cluster: str) -> bytes:
    """The file for these endpoints, ordered by id. Of several endpoints on one `address:port` the first counts.

    Source: envoy.service.discovery.v3.DiscoveryResponse, envoy.config.endpoint.v3.ClusterLoadAssignment.
    """
    unique: dict[tuple[str, int], Endpoint] = {}
    for endpoint in sorted(endpoints, key=lambda one: one.id):
        unique.setdefault((endpoint.address, endpoint.port), endpoint)
    hosts = [
        {"endpoint": {"address": {"socket_address": {"address": address, "port_value": port}}}}
        for address, port in unique
    ]
    assignment = {
        "@type": _RESPONSE_TYPE,
        "cluster_name": cluster,
        "endpoints": [{"lb_endpoints": hosts}] if hosts else [],
    }
    version = xxhash.xxh3_64_hexdigest(msgspec.json.encode(assignment))
    response = {"version_info": version, "resources": [assignment]}
    return msgspec.json.format(msgspec.json.encode(response), indent=1) + b"\n"


class EdsFile:
    """The file on disk. `write` is for a worker thread."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._content: bytes | None = None
        self.writes = 0

    def write(self, content: bytes) -> bool:
        """Replace the file by one with this content, unless it has it already; whether it was replaced.

        Raises OSError; the old file is then untouched.
        """
        if content == self._content and self._path.exists():
            return False
        if self._content is None and self._read() == content:
            self._content = content
            return False
        replace_file(self._path, content, _MODE)
        self._content = content
        self.writes += 1
        return True

    def check(self) -> None:
        """Raises OSError when the file's directory isn't there or can't be written to."""
        if not self._path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, f"no directory {str(self._path.parent)!r}")
        if not os.access(self._path.parent, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, f"no permission to write in {str(self._path.parent)!r}")

    def exists(self) -> bool:
        return self._path.exists()

    def _read(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except OSError:
            return None  # it isn't there, or not ours to read: writing will tell

    def __repr__(self) -> str:
        return f"<EdsFile {self._path} written {self.writes} times>"


def replace_file(path: Path, content: bytes, mode: int) -> None:
    """Put a whole file in the place of another at once: nobody ever reads a part of it. Raises OSError."""
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with contextlib.suppress(OSError):
            part.unlink()
        raise
