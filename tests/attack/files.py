"""Invalid and hostile endpoints and configuration files, with the good one in between."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

from tests.attack.fronts import Act, Front, Scene
from tests.attack.model_servers import ModelServers
from tests.attack.target import CONFIGURATION, good_document, good_file, replace

LASTS = 1.0
"""Seconds for which a file stays: it is read within some 20 ms, and a large one takes its time."""
BOMB = b"a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (level, level, b",".join([b"*a%d" % (level - 1)] * 9)) for level in range(1, 12)
)
LARGE = 16 * 2**20
UNRESOLVED = [{"name": f"odd-{number}", "address": f"h{number}.invalid", "port": 9} for number in range(1000)]

ENTRIES: dict[str, list[dict[str, Any]]] = {
    "surrogates": [{"name": "\ud800"}, {"labels": {"a": "\udfff"}}, {"labels": {"\ud800": "a"}}, {"node": "\ud800"}],
    "integers": [{"rank": 2**70}, {"rank": -1}, {"port": 2**70}, {"port": "9" * 5000}, {"rank": 1e308}],
    "large-labels": [
        {"labels": {"a": "a" * 1_100_000}},
        {"labels": {f"a{number}": "b" * 10 for number in range(60_000)}},
    ],
    "duplicates": [{"name": "model-1"}],
    "hosts": [{"address": "nowhere.invalid"}, {"address": "a." * 120 + "invalid"}, {"address": "x" * 10_000}],
    "names": [{"name": "a" * 253}, {"name": "\u202e\u0301" * 100}, {"name": "=./*>"}, {"namespace": "é" * 253}],
    "types": [{"labels": []}, {"labels": {"a": {}}}, {"port": None}, {"name": 5}, {"metricsHost": "[::1"}],
}
"""Additional entries of the good list."""
CONTENTS: dict[str, list[bytes]] = {
    "bombs": [BOMB, b"endpoints: *missing\n", b"a: &a [*a]\nendpoints: *a\n"],
    "documents": [b"---\n" * 4000, b"GOOD" + b"---\n{}\n" * 4000, b"---\na: 1\n" * 4000],
    "sizes": [
        *(b"a" * LARGE, b"endpoints: [" + b"{}," * (LARGE // 3), b" " * LARGE),
        *(b"- " * 5000, b"[" * 100_000),
    ],
    "bytes": [b"", b"\x00" * 5000, b"\xff\xfeGOOD", b"HALF", b"\xef\xbb\xbf", b"!!python/name:os"],
}
"""Whole files that can't be read, or that take long. `GOOD` stands for the good file, `HALF` for half of it."""
CONFIGURATIONS = (
    CONFIGURATION.encode() + b"- {type: no-such-plugin}\n" * 3000,
    CONFIGURATION.replace("plugins:", "plugins:\n" + "- {type: queue-scorer}\n" * 3000, 1).encode() + b"bad: 1\n",
    CONFIGURATION.replace("maxNumOfEndpoints: 2", "maxNumOfEndpoints: -1e308").encode(),
    CONFIGURATION.replace("weight: 2", "weight: .nan").encode(),
    *(BOMB, b"\xff" * 1000, b"a" * LARGE),
)


class Files(Front):
    """The watcher refuses a file, or what is wrong in it: the good endpoints stay."""

    name = "files"
    at_once = 1
    period = 0.1

    def __init__(self, scene: Scene, servers: ModelServers) -> None:
        super().__init__(scene)
        self._servers = servers

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        try:
            yield
        finally:
            replace(self.stack.endpoints_file, self._good())

    def tables(self) -> Mapping[str, Act]:
        return {
            **{name: partial(self._entry, changes) for name, changes in ENTRIES.items()},
            **{name: partial(self._content, contents) for name, contents in CONTENTS.items()},
        }

    def _good(self) -> bytes:
        return good_file(self.stack, self._servers.ports)

    async def _hold(self, content: bytes) -> None:
        replace(self.stack.endpoints_file, content)
        await asyncio.sleep(LASTS)
        replace(self.stack.endpoints_file, self._good())
        await asyncio.sleep(LASTS / 2)

    async def _content(self, contents: list[bytes], random: Random) -> None:
        good = self._good()
        await self._hold(random.choice(contents).replace(b"GOOD", good).replace(b"HALF", good[: len(good) // 2]))

    async def _entry(self, changes: list[dict[str, Any]], random: Random) -> None:
        await self._with([{"name": "odd", "address": "127.0.0.1", "port": 9, **random.choice(changes)}])

    async def _with(self, entries: list[dict[str, Any]]) -> None:
        document = good_document(self.stack, self._servers.ports)
        document["endpoints"] += entries
        # JSON is YAML, and can express a lone surrogate.
        await self._hold(f"{json.dumps(document)}\n---\n{self.stack.plan.resources}".encode())

    async def act_mutated(self, random: Random) -> None:
        """The good file with an invalid byte."""
        content = bytearray(self._good())
        content[random.randrange(len(content))] = random.choice(b"\x00\x01\xff")
        await self._hold(bytes(content))

    async def act_many_endpoints(self, random: Random) -> None:
        """A thousand names that nobody resolves."""
        await self._with(UNRESOLVED)

    async def act_configurations(self, random: Random) -> None:
        """Configurations that no tier can use."""
        path = self.stack.directory / "config.yaml"
        replace(path, random.choice(CONFIGURATIONS))
        await asyncio.sleep(LASTS)
        replace(path, CONFIGURATION.encode())
        await asyncio.sleep(LASTS / 2)
