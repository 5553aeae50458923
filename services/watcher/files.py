"""The file source: endpoints and resources from files and directories, the configuration from a file of its own.

Of a directory, `.yaml`, `.yml` and `.json` files are read, except hidden ones; each file is an origin. A file is read
again when its device, inode, size or times change, and used if they are the same before and after reading.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import structlog
from msgspec import Struct

from services.watcher.collection import without_collection
from services.watcher.configuration import Registries, validate
from services.watcher.documents import MAX_VALUES, Documents, by_line, read_documents
from services.watcher.problem_budget import ProblemBudget
from services.watcher.resources import PoolId
from services.watcher.sources import Emit, Event, Rejected, Removed, Reset
from shared.config.loaded import LoadedConfig
from shared.config.problems import Invalid, Problem, Problems
from shared.config.schema import BOUNDS, Bounds
from shared.config.schema import KIND as CONFIGURATION_KIND
from shared.datalayer.objects import ObjectKind, Parts
from shared.regular_file import read_regular
from shared.service.watch import file_signature, watch_files

log = structlog.get_logger(__name__)

SUFFIXES = (".yaml", ".yml", ".json")
UNSTEADY_WAIT = 0.02
"""Seconds until a file that changed while it was read is read again."""
UNSTEADY_TRIES = 25
Signature: TypeAlias = tuple[int, ...]
"""Changes with a file; empty for a link to nowhere."""


class Root(Struct, frozen=True):
    """A path to read: a file, or a directory of files."""

    path: str
    flag: str
    """Where the path is configured, for messages."""
    watched: bool = True
    configures: bool = False
    """Whether it has to contain an EndpointPickerConfig."""

    @property
    def origin(self) -> str:
        return str(Path(self.path))


class Limits(Struct, frozen=True):
    """The most bytes and values of one file, and the most files of one directory."""

    file_size: int = 16 * 2**20
    values: int = MAX_VALUES
    files: int = 1000


class ParsedFile(Struct, frozen=True):
    """One file's content. With errors, the rest is incomplete."""

    documents: Documents = Documents()
    loaded: LoadedConfig | None = None
    errors: tuple[Problem, ...] = ()

    def event(self, origin: str) -> Reset | Rejected:
        """A file with an error is rejected as a whole."""
        return Rejected(origin, self.errors) if self.errors else Reset(origin, self.documents, self.loaded)


class FileReader:
    """Parses one file's bytes. Pure but for the registry. Without a pool, resources of all pools are read."""

    def __init__(
        self,
        pool: PoolId | None,
        registries: Registries,
        *,
        allow_experimental: bool = False,
        bounds: Bounds = BOUNDS,
        limits: Limits | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self._pool = pool
        self._bounds = bounds
        self._registries = registries
        self._allow_experimental = allow_experimental
        self.object_kinds: frozenset[ObjectKind] = frozenset()
        """Kinds of Kubernetes objects to read."""

    def read(self, origin: str, data: bytes, *, configures: bool = False) -> ParsedFile:
        """`configures`: the file has to contain an EndpointPickerConfig."""
        problems = Problems()
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            return ParsedFile(errors=(Problem("", f"byte {error.start} isn't UTF-8: {error.reason}", line),))
        documents = read_documents(
            text, origin, problems, pool=self._pool, object_kinds=self.object_kinds, max_values=self.limits.values
        )
        if configures and not problems.errors and documents.configuration is None:
            problems.error("", f"no {CONFIGURATION_KIND} in it")
        loaded = None
        try:
            experimental, bounds = self._allow_experimental, self._bounds
            loaded = validate(documents, self._registries, allow_experimental=experimental, bounds=bounds)
        except Invalid as error:
            problems.add_new_errors(error.problems)  # `read_documents` has reported duplicate keys
        return ParsedFile(documents, loaded, tuple(by_line(problems.errors)))


class FileSource:
    """Reads and watches the roots that `follow` sets. The origins of a former root are removed."""

    name = "files"

    def __init__(self, reader: FileReader, interval: float) -> None:
        self._reader = reader
        self._interval = interval
        self._roots: tuple[Root, ...] = ()
        self._unread: dict[str, Rejected] = {}
        """Files that couldn't be read at the last look, and why."""
        self._seen: dict[str, Signature | None] = {}
        """Each origin that was read; None: it has to be read again."""
        self._unsteady: set[str] = set()
        """Files that changed while they were read."""
        self._unlisted: set[str] = set()
        """Roots that could not be listed."""
        self._settled: set[Root] = set()
        """Roots that aren't watched and have been read. Of these, only files that couldn't be read are read again."""
        self._budget = ProblemBudget()

    def follow(self, roots: Sequence[Root]) -> None:
        """Read these paths from now on."""
        self._roots = tuple(roots)
        self._settled &= set(roots)

    def set_object_kinds(self, kinds: Mapping[ObjectKind, Parts]) -> bool:
        """Other kinds make all files be read again, including those that aren't watched."""
        if kinds.keys() == self._reader.object_kinds:
            return False
        self._reader.object_kinds = frozenset(kinds)
        self._seen = dict.fromkeys(self._seen)
        self._settled.clear()
        return bool(self._seen)

    def confirmed_at(self, now: float) -> float:
        """While the source runs, its last report is what the files say, or their last valid content."""
        return now

    async def load(self) -> list[Event]:
        """Read all roots. A file that keeps changing is rejected."""
        events: list[Event] = []
        for _ in range(UNSTEADY_TRIES):
            events += await asyncio.to_thread(self._read_changed)
            if not self._unsteady:
                return events
            await asyncio.sleep(UNSTEADY_WAIT)
        problem = Problem("", "changes all the time; a file should be replaced by rename")
        return events + [Rejected(origin, (problem,)) for origin in sorted(self._unsteady)]

    async def run(self, emit: Emit) -> None:
        async for _ in watch_files(lambda: [Path(root.path) for root in self._roots if root.watched], self._interval):
            for _ in range(UNSTEADY_TRIES):
                before = self._roots, self._reader.object_kinds
                if events := await asyncio.to_thread(self._read_changed):
                    await emit(events)
                if self._unsteady:
                    await asyncio.sleep(UNSTEADY_WAIT)
                elif before == (self._roots, self._reader.object_kinds):
                    break  # otherwise a configuration has named another file, or other kinds of objects

    def _read_changed(self) -> list[Event]:
        """Runs in a thread, one call at a time."""
        events: list[Event] = []
        present: set[str] = set()
        self._unsteady.clear()
        for root in self._roots:
            settled = root in self._settled
            files = self._left(root) if settled else self._list(root, events)
            if settled or files is None:
                present |= {origin for origin in self._seen if _within(origin, root)} | {root.origin}
            if files is None:
                continue
            present |= files.keys()
            for origin, signature in files.items():
                if self._seen.get(origin) != signature:
                    self._read(origin, signature, root, events)
            if not root.watched:
                self._settled.add(root)
        for origin in sorted((self._seen.keys() | self._unlisted) - present):
            self._seen.pop(origin, None)
            self._unread.pop(origin, None)
            self._unlisted.discard(origin)
            self._budget.drop(origin)
            events.append(Removed(origin))
        return events

    def _left(self, root: Root) -> Mapping[str, Signature]:
        """The files of a settled root that couldn't be read."""
        unread = [origin for origin, seen in self._seen.items() if seen is None and _within(origin, root)]
        return {origin: _signature(Path(origin)) for origin in unread}

    def _list(self, root: Root, events: list[Event]) -> Mapping[str, Signature] | None:
        """The root's files; None if it can't be listed."""
        path = Path(root.path)
        try:
            files = list_files(path, self._reader.limits.files)
        except (OSError, Unusable) as error:
            if root.origin not in self._unlisted:
                events.append(Rejected(root.origin, (_problem(error, root),)))
                self._unlisted.add(root.origin)
                self._seen.pop(root.origin, None)  # report the file when it is back, even if it hasn't changed
            return None
        if root.origin in self._unlisted:
            self._unlisted.discard(root.origin)
            if os.path.isdir(path):  # that of a Path may raise
                events.append(Removed(root.origin))
        return {str(file): _signature(file) for file in files}

    def _read(self, origin: str, signature: Signature, root: Root, events: list[Event]) -> None:
        try:
            data = read_bytes(origin, self._reader.limits.file_size)
        except OSError as error:  # the next look reads it again, changed or not
            unread = Rejected(origin, (_problem(error, root),))
            if self._unread.get(origin) != unread:
                events.append(self._budget.fit(origin, unread))
            self._seen[origin], self._unread[origin] = None, unread
            return
        except Unusable as error:
            event: Reset | Rejected = Rejected(origin, (_problem(error, root),))
        else:
            if _signature(Path(origin)) != signature:
                self._seen[origin] = None
                self._unsteady.add(origin)
                return
            event = without_collection(lambda: self._parse(origin, data, root))
        self._seen[origin] = signature
        self._unread.pop(origin, None)
        events.append(self._budget.fit(origin, event))

    def _parse(self, origin: str, data: bytes, root: Root) -> Reset | Rejected:
        try:
            return self._reader.read(origin, data, configures=root.configures).event(origin)
        except Exception as error:  # an unexpected file doesn't affect the others
            log.exception("file.unreadable", origin=origin)
            return Rejected(origin, (Problem("", f"it can't be read: {type(error).__name__}: {error}"),))

    def __repr__(self) -> str:
        return f"<FileSource {', '.join(root.path for root in self._roots) or 'of nothing'}, {len(self._seen)} files>"


class Unusable(Exception):
    """A path exists and can't be used."""


def reason(error: OSError | Unusable) -> str:
    """Why a path can't be used."""
    return f"can't be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def list_files(path: Path, most: int) -> list[Path]:
    """The path itself if it is a file, or the directory's files, sorted.

    Raises OSError, and Unusable for a directory without files or with more than `most`.
    """
    if not path.is_dir():
        path.stat()
        return [path]
    visible = (file for file in path.iterdir() if file.suffix in SUFFIXES and file.name[0] != ".")
    found = sorted(file for file in visible if not os.path.isdir(file))  # that of a Path may raise
    if not found:
        raise Unusable(f"no {', '.join(SUFFIXES)} file in it; `endpoints: []` in one says that there are none")
    for file in found:
        if not file.name.isprintable():
            raise Unusable(f"{file.name!a} in it: the name of a file consists of printable characters")
    if len(found) > most:
        raise Unusable(f"{len(found)} files; at most {most} are read")
    return found


def read_bytes(path: str, limit: int) -> bytes:
    """A regular file's content. Raises OSError, and Unusable for more than `limit` bytes."""
    return within(read_regular(path, limit + 1), limit)


def within(data: bytes, limit: int) -> bytes:
    """The data, if it isn't larger than the limit. Raises Unusable otherwise."""
    if len(data) > limit:
        raise Unusable(f"is larger than {limit} bytes")
    return data


def _problem(error: OSError | Unusable, root: Root) -> Problem:
    return Problem("", f"{reason(error)} ({root.flag})")


def _within(origin: str, root: Root) -> bool:
    return origin == root.origin or Path(origin).parent == Path(root.path)


def _signature(path: Path) -> Signature:
    try:
        return file_signature(path.stat())
    except OSError:
        return ()
