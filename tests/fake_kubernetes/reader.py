"""Whoever reads a watch: keeps the set that follows from its reports, and checks every list against the cluster."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.watcher.kubernetes.reflector import Delete, Event, Failed, Problem, Reflector, Reset, Upsert
from services.watcher.kubernetes.resource import JsonObject, tidy
from tests.fake_kubernetes.cluster import Cluster, Name, name_of


class Reader:
    """The set of objects, by the three words' meaning."""

    def __init__(self, watch: Reflector, cluster: Cluster) -> None:
        self.watch = watch
        self.cluster = cluster
        self.objects: dict[Name, JsonObject] = {}
        self.reports: list[str] = []
        """The kind of each report, with the names it is of."""
        self.problems: list[Problem] = []
        self.lists = 0

    def take(self, report: Event) -> None:
        match report:
            case Reset(items):
                version = self.watch.resource_version
                self.objects = {name_of(item): item for item in items}
                self.lists += 1
                self.reports.append("listed " + " ".join(name for _, name in sorted(self.objects)))
                if version.isdecimal() and int(version) in self.cluster.states:
                    assert self.objects == self.expected(int(version)), "a list is the server's state at its version"
            case Upsert(item):
                self.objects[name_of(item)] = item
                self.reports.append(f"changed {name_of(item)[1]}")
            case Delete(item):
                del self.objects[name_of(item)]
                self.reports.append(f"gone {name_of(item)[1]}")
            case Failed(problem):
                self.problems.append(problem)
                self.reports.append(f"troubled {problem.kind}")

    def expected(self, version: int | None = None) -> dict[Name, JsonObject]:
        """What the set has to be."""
        found = self.cluster.selected(self.watch.selection, version)
        return {
            key: tidy({**item, "metadata": dict(item["metadata"])}, self.cluster.resource)
            for key, item in found.items()
        }

    @property
    def right(self) -> bool:
        return self.objects == self.expected()

    @property
    def names(self) -> list[str]:
        return sorted(name for _, name in self.objects)

    async def run(self) -> None:
        async for report in self.watch.run():
            self.take(report)


@asynccontextmanager
async def reading(watch: Reflector, cluster: Cluster) -> AsyncIterator[Reader]:
    """A reader at work; the test fails with whatever it fails with."""
    reader = Reader(watch, cluster)
    task = asyncio.create_task(reader.run())
    try:
        yield reader
    finally:
        if not task.done():
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
