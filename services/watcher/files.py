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
from services.watcher.documents import Documents, by_line, read_documents
from services.watcher.resources import PoolId
from services.watcher.sources import Emit, Event, Rejected, Removed, Reset
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid, Problem, Problems
from shared.config.schema import BOUNDS, Bounds
from shared.config.schema import KIND as CONFIGURATION_KIND
from shared.datalayer.objects import ObjectKind, Parts
from shared.service.watch import file_signature, looks

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


class Reading(Struct, frozen=True):
    """What one file's bytes come to. With errors, the rest isn't complete."""

    documents: Documents = Documents()
    loaded: LoadedConfig | None = None
    errors: tuple[Problem, ...] = ()

    def event(self, origin: str) -> Reset | Rejected:
        """What the file states; rejected as a whole when anything in it is wrong."""
        return Rejected(origin, self.errors) if self.errors else Reset(origin, self.documents, self.loaded)


class FileReader:
    """One file's bytes into what they state. Pure but for the registry. Without a pool, those of every pool count."""

    def __init__(
        self,
        pool: PoolId | None,
        registries: Registries,
        *,
        allow_experimental: bool = False,
        bounds: Bounds = BOUNDS,
    ) -> None:
        self._pool = pool
        self._bounds = bounds
        self._registries = registries
        self._allow_experimental = allow_experimental
        self.wanted: frozenset[ObjectKind] = frozenset()
        """Kinds of Kubernetes objects that aren't left out."""

    def read(self, origin: str, data: bytes, *, configures: bool = False) -> Reading:
        """`configures`: the file has to have an EndpointPickerConfig."""
        problems = Problems()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            return Reading(errors=(Problem("", f"byte {error.start} isn't UTF-8: {error.reason}", line),))
        documents = read_documents(text, origin, problems, pool=self._pool, wanted=self.wanted)
        if configures and not problems.errors and documents.configuration is None:
            problems.error("", f"no {CONFIGURATION_KIND} in it")
        loaded = None
        try:
            experimental, bounds = self._allow_experimental, self._bounds
            loaded = validate(documents, self._registries, allow_experimental=experimental, bounds=bounds)
        except Invalid as error:
            # A duplicate key has been noted by whoever read the text first.
            problems.errors += [one for one in error.problems if one not in problems.errors]
        return Reading(documents, loaded, tuple(by_line(problems.errors)))


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

    def want(self, kinds: Mapping[ObjectKind, Parts]) -> bool:
        """Read objects of these kinds from now on, all of them; files that were read for others are read again, also
        those that aren't watched. Whether there are any to be."""
        wanted = frozenset(kinds)
        if wanted == self._reader.wanted:
            return False
        self._reader.wanted = wanted
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
            files = list_files(path, self._limits.files)
        except (OSError, Unusable) as error:
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

    def _read(self, origin: str, signature: _Signature, root: Root, events: list[Event]) -> None:
        try:
            data = read_bytes(origin, self._limits.file_size)
        except (OSError, Unusable) as error:
            event: Event = Rejected(origin, (_problem(error, root),))
        else:
            if _signature(Path(origin)) != signature:
                self._seen[origin] = _UNREAD
                return
            event = self._reader.read(origin, data, configures=root.configures).event(origin)
        self._seen[origin] = signature
        events.append(event)

    def __repr__(self) -> str:
        return f"<FileSource {', '.join(root.path for root in self._roots) or 'of nothing'}, {len(self._seen)} files>"


class Unusable(Exception):
    """A path is there and can't be used; says why."""


def reason(error: OSError | Unusable) -> str:
    """Why a path can't be used."""
    return f"can't be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def list_files(path: Path, most: int) -> list[Path]:
    """The files that a path stands for: itself, or a directory's, sorted.

    Raises OSError, and Unusable for a directory with none or with more than `most`.
    """
    if not path.is_dir():
        path.stat()
        return [path]
    found = sorted(one for one in path.iterdir() if one.suffix in SUFFIXES and one.name[0] != "." and not one.is_dir())
    if not found:
        raise Unusable(f"no {', '.join(SUFFIXES)} file in it; `endpoints: []` in one says that there are none")
    for one in found:
        if not one.name.isprintable():
            raise Unusable(f"{one.name!a} in it: the name of a file consists of printable characters")
    if len(found) > most:
        raise Unusable(f"{len(found)} files; at most {most} are read")
    return found


def read_bytes(path: str, limit: int) -> bytes:
    """A regular file's content. Raises OSError, and Unusable for one of more than `limit` bytes, or for a pipe or a
    device, which would hold the reader for ever."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise Unusable("is no regular file")
        return within(file.read(limit + 1), limit)


def within(data: bytes, limit: int) -> bytes:
    """The data, of which one byte more than the limit was asked for. Raises Unusable when it came."""
    if len(data) > limit:
        raise Unusable(f"is larger than {limit} bytes")
    return data


def _problem(error: OSError | Unusable, root: Root) -> Problem:
    return Problem("", f"{reason(error)} ({root.flag})")


def _within(origin: str, root: Root) -> bool:
    return origin == root.origin or Path(origin).parent == Path(root.path)


def _signature(path: Path) -> _Signature:
    try:
        status = path.stat()
    except OSError:
        return _ABSENT
    return _Signature(*file_signature(status))
