"""The file source: endpoints and resources from files and directories, the configuration from a file of its own.

A directory's `.yaml`, `.yml` and `.json` files are read, hidden ones and subdirectories aside; each file is an origin.
A file is read when its device, inode, size or times changed, and taken when they were the same before and after.
"""

import asyncio
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import structlog
from msgspec import Struct

from services.watcher.configuration import Registries, validate
from services.watcher.documents import by_line, read_documents
from services.watcher.resources import PoolId
from services.watcher.sources import Emit, Event, Rejected, Removed, Reset
from services.watcher.watch import looks
from shared.config.problems import Invalid, Problem, Problems
from shared.config.schema import KIND as CONFIGURATION_KIND
from shared.datalayer.objects import ObjectKind

log = structlog.get_logger(__name__)

SUFFIXES = (".yaml", ".yml", ".json")
UNSTEADY_WAIT = 0.02
"""Seconds until a file that changed while it was read is read again."""
UNSTEADY_TRIES = 25


class Root(Struct, frozen=True):
    """A path that somebody named: a file, or a directory of files."""

    path: str
    flag: str
    """Who named it, for messages: a flag, or a place in the configuration."""
    watched: bool = True
    configures: bool = False
    """It has to have an EndpointPickerConfig."""

    @property
    def origin(self) -> str:
        """The path as origins spell it."""
        return str(Path(self.path))


class Limits(Struct, frozen=True):
    """What is read at most."""

    file_size: int = 16 * 2**20
    """Bytes of one file."""
    files: int = 1000
    """Files of one directory."""


class _Signature(Struct, frozen=True):
    """What tells that a file was changed or replaced."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


_UNREAD = _Signature(-1, -1, -1, -1, -1)
"""Of a file that changed while it was read."""
_ABSENT = _Signature(-2, -2, -2, -2, -2)
"""Of a link that leads nowhere."""
_OUTDATED = _Signature(-3, -3, -3, -3, -3)
"""Of a file that is to be read again, changed or not."""


class FileReader:
    """One file's bytes into an event. Pure but for the registry."""

    def __init__(self, pool: PoolId, registries: Registries, *, allow_experimental: bool = False) -> None:
        self._pool = pool
        self._registries = registries
        self._allow_experimental = allow_experimental
        self.wanted: frozenset[ObjectKind] = frozenset()
        """Kinds of Kubernetes objects that aren't left out."""

    def read(self, origin: str, data: bytes, *, configures: bool = False) -> Reset | Rejected:
        """What the file states; rejected as a whole when anything in it is wrong."""
        problems = Problems()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            return Rejected(origin, (Problem("", f"byte {error.start} isn't UTF-8: {error.reason}", line),))
        documents = read_documents(text, origin, problems, pool=self._pool, wanted=self.wanted)
        if configures and not problems.errors and documents.configuration is None:
            problems.error("", f"no {CONFIGURATION_KIND} in it")
        loaded = None
        try:
            loaded = validate(documents, self._registries, allow_experimental=self._allow_experimental)
        except Invalid as error:
            # A duplicate key has been noted by whoever read the text first.
            problems.errors += [one for one in error.problems if one not in problems.errors]
        if problems.errors:
            return Rejected(origin, tuple(by_line(problems.errors)))
        return Reset(origin, documents, loaded)


class FileSource:
    """Reads roots and watches them. `follow` names them; a root that is no longer named takes its origins along."""

    name = "files"

    def __init__(self, reader: FileReader, interval: float, limits: Limits | None = None) -> None:
        self._reader = reader
        self._interval = interval
        self._limits = limits or Limits()
        self._roots: tuple[Root, ...] = ()
        self._seen: dict[str, _Signature] = {}
        """Of every origin that was read, what it was then."""
        self._unlisted: set[str] = set()
        """Roots that could not be listed."""
        self._settled: set[Root] = set()
        """Roots that aren't watched and have been read."""

    def follow(self, roots: Sequence[Root]) -> None:
        """Read these paths from now on."""
        self._roots = tuple(roots)
        self._settled &= set(roots)

    def want(self, kinds: frozenset[ObjectKind]) -> bool:
        """Read objects of these kinds from now on; files that were read for others are read again, also those that
        aren't watched. Whether there are any to be."""
        if kinds == self._reader.wanted:
            return False
        self._reader.wanted = kinds
        self._seen = dict.fromkeys(self._seen, _OUTDATED)
        self._settled.clear()
        return bool(self._seen)

    def confirmed(self, now: float) -> float:
        """Now: while the source runs, what it said last is what the files say, or their last good content."""
        return now

    async def load(self) -> list[Event]:
        """Read all roots. A file that goes on changing is rejected."""
        events: list[Event] = []
        for _ in range(UNSTEADY_TRIES):
            events += await asyncio.to_thread(self._look)
            if not self._unsteady:
                return events
            await asyncio.sleep(UNSTEADY_WAIT)
        problem = Problem("", "changes all the time; a file should be replaced by rename")
        return events + [Rejected(origin, (problem,)) for origin in self._unsteady]

    async def run(self, emit: Emit) -> None:
        async for _ in looks(self._watched, self._interval):
            for _ in range(UNSTEADY_TRIES):
                roots, wanted = self._roots, self._reader.wanted
                if events := await asyncio.to_thread(self._look):
                    emit(events)
                if self._unsteady:
                    await asyncio.sleep(UNSTEADY_WAIT)
                elif (roots, wanted) == (self._roots, self._reader.wanted):
                    break  # else what was read named another file to read, or other kinds of objects

    @property
    def _unsteady(self) -> list[str]:
        return [origin for origin, signature in self._seen.items() if signature == _UNREAD]

    def _watched(self) -> list[Path]:
        return [Path(root.path) for root in self._roots if root.watched]

    def _look(self) -> list[Event]:
        """Read what changed. Runs in a thread, never twice at a time."""
        events: list[Event] = []
        present: set[str] = set()
        for root in self._roots:
            files = None if root in self._settled else self._list(root, events)
            if files is None:
                present |= {origin for origin in self._seen if _within(origin, root)} | {root.origin}
                continue
            present |= files.keys()
            for origin, signature in files.items():
                if self._seen.get(origin) != signature:
                    self._read(origin, signature, root, events)
            if not root.watched and not self._unsteady:
                self._settled.add(root)
        for origin in sorted((self._seen.keys() | self._unlisted) - present):
            self._seen.pop(origin, None)
            self._unlisted.discard(origin)
            events.append(Removed(origin))
        return events

    def _list(self, root: Root, events: list[Event]) -> Mapping[str, _Signature] | None:
        """The root's files with their signatures, or None when it can't be listed."""
        path = Path(root.path)
        try:
            files = self._files(path)
        except (OSError, _Unusable) as error:
            if root.origin not in self._unlisted:
                events.append(Rejected(root.origin, (_problem(error, root),)))
                self._unlisted.add(root.origin)
                self._seen.pop(root.origin, None)  # a file that comes back as it was is news
            return None
        if root.origin in self._unlisted:
            self._unlisted.discard(root.origin)
            if path.is_dir():
                events.append(Removed(root.origin))
        return {str(one): _signature(one) for one in files}

    def _files(self, path: Path) -> list[Path]:
        if not path.is_dir():
            path.stat()
            return [path]
        found = sorted(
            one for one in path.iterdir() if one.suffix in SUFFIXES and one.name[0] != "." and not one.is_dir()
        )
        if not found:
            raise _Unusable(f"no {', '.join(SUFFIXES)} file in it; `endpoints: []` in one says that there are none")
        if len(found) > self._limits.files:
            raise _Unusable(f"{len(found)} files; at most {self._limits.files} are read")
        return found

    def _read(self, origin: str, signature: _Signature, root: Root, events: list[Event]) -> None:
        try:
            data = _bytes(origin, self._limits.file_size)
        except (OSError, _Unusable) as error:
            event: Event = Rejected(origin, (_problem(error, root),))
        else:
            if _signature(Path(origin)) != signature:
                self._seen[origin] = _UNREAD
                return
            event = self._reader.read(origin, data, configures=root.configures)
        self._seen[origin] = signature
        events.append(event)

    def __repr__(self) -> str:
        return f"<FileSource {', '.join(root.path for root in self._roots) or 'of nothing'}, {len(self._seen)} files>"


class _Unusable(Exception):
    """A path is there and can't be used; says why."""


def _problem(error: OSError | _Unusable, root: Root) -> Problem:
    reason = f"can't be read: {error.strerror}" if isinstance(error, OSError) else str(error)
    return Problem("", f"{reason} ({root.flag})")


def _within(origin: str, root: Root) -> bool:
    return origin == root.origin or Path(origin).parent == Path(root.path)


def _signature(path: Path) -> _Signature:
    try:
        status = path.stat()
    except OSError:
        return _ABSENT
    return _Signature(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _bytes(path: str, limit: int) -> bytes:
    """A regular file's content. A pipe or a device would hold the reader for ever, and is refused."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise _Unusable("is no regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise _Unusable(f"is larger than {limit} bytes")
    return data
