"""Endpoints and configuration files that are no files of ours, with the good one in between."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from random import Random
from typing import Any

import yaml

from tests.attack.fronts import Act, Front, Scene
from tests.attack.model_servers import ModelServers
from tests.attack.target import CONFIGURATION, good_document, replace

HOLDS = 1.0
"""Seconds for which a file stays: it is read within some 20 ms, and a large one takes its time."""
BOMB = b"a0: &a0 [x,x,x,x,x,x,x,x,x]\n" + b"".join(
    b"a%d: &a%d [%s]\n" % (one, one, b",".join([b"*a%d" % (one - 1)] * 9)) for one in range(1, 12)
)
LARGE = 16 * 2**20


class Files(Front):
    """Each is refused, or costs only what is wrong with it: in all of them the good endpoints are still there, or
    nothing can be read at all."""

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
            self._put_good()

    def acts(self) -> Mapping[str, Act]:
        return {
            **{name: partial(self._endpoint, changes) for name, changes in self._odd().items()},
            **{name: partial(self._content, contents) for name, contents in self._contents().items()},
            "mutated": self._mutated,
            "many-endpoints": self._many,
            "configurations": self._configurations,
        }

    def _odd(self) -> dict[str, list[dict[str, Any]]]:
        """Further entries of the good list, by what is wrong with them."""
        return {
            "surrogates": [
                {"name": "\ud800"},
                {"labels": {"a": "\udfff"}},
                {"labels": {"\ud800": "a"}},
                {"node": "\ud800"},
            ],
            "integers": [{"rank": 2**70}, {"rank": -1}, {"port": 2**70}, {"port": "9" * 5000}, {"rank": 1e308}],
            "large-labels": [
                {"labels": {"a": "a" * 1_100_000}},
                {"labels": {f"a{one}": "b" * 10 for one in range(60_000)}},
            ],
            "duplicates": [{"name": self.stack.simulators[0].name}],
            "hosts": [{"address": "nowhere.invalid"}, {"address": "a." * 120 + "invalid"}, {"address": "x" * 10_000}],
            "names": [{"name": "a" * 253}, {"name": "\u202e\u0301" * 100}, {"name": "=./*>"}, {"namespace": "é" * 253}],
            "types": [{"labels": []}, {"labels": {"a": {}}}, {"port": None}, {"name": 5}, {"metricsHost": "[::1"}],
        }

    def _contents(self) -> dict[str, list[bytes]]:
        """Whole files that nobody can read, or that take long to."""
        good = self._good()
        return {
            "bombs": [BOMB, b"endpoints: *missing\n", b"a: &a [*a]\nendpoints: *a\n"],
            "documents": [b"---\n" * 4000, good + b"---\n{}\n" * 4000, b"---\na: 1\n" * 4000],
            "sizes": [
                b"a" * LARGE,
                b"endpoints: [" + b"{}," * (LARGE // 3),
                b" " * LARGE,
                b"- " * 5000,
                b"[" * 100_000,
            ],
            "bytes": [
                b"",
                b"\x00" * 5000,
                b"\xff\xfe" + good,
                good[: len(good) // 2],
                b"\xef\xbb\xbf",
                b"!!python/name:os",
            ],
        }

    def _good(self) -> bytes:
        document = yaml.safe_dump(good_document(self.stack, self._servers.ports))
        return f"{document}---\n{self.stack.plan.resources}".encode()

    def _put_good(self) -> None:
        replace(self.stack.endpoints_file, self._good())

    async def _hold(self, content: bytes) -> None:
        replace(self.stack.endpoints_file, content)
        await asyncio.sleep(HOLDS)
        self._put_good()
        await asyncio.sleep(HOLDS / 2)

    async def _content(self, contents: list[bytes], random: Random) -> None:
        await self._hold(random.choice(contents))

    async def _endpoint(self, changes: list[dict[str, Any]], random: Random) -> None:
        await self._with([{"name": "odd", "address": "127.0.0.1", "port": 9, **random.choice(changes)}])

    async def _with(self, entries: list[dict[str, Any]]) -> None:
        document = good_document(self.stack, self._servers.ports)
        document["endpoints"] += entries
        # JSON is YAML, and has a way to write a lone surrogate.
        await self._hold(f"{json.dumps(document)}\n---\n{self.stack.plan.resources}".encode())

    async def _mutated(self, random: Random) -> None:
        """The good file with a byte that can't be in one."""
        content = bytearray(self._good())
        content[random.randrange(len(content))] = random.choice(b"\x00\x01\xff")
        await self._hold(bytes(content))

    async def _many(self, random: Random) -> None:
        """A thousand names that nobody resolves."""
        await self._with([{"name": f"odd-{one}", "address": f"h{one}.invalid", "port": 9} for one in range(1000)])

    async def _configurations(self, random: Random) -> None:
        """Configurations that no tier can use."""
        contents = (
            CONFIGURATION.encode() + b"- {type: no-such-plugin}\n" * 3000,
            CONFIGURATION.replace("plugins:", "plugins:\n" + "- {type: queue-scorer}\n" * 3000, 1).encode()
            + b"bad: 1\n",
            CONFIGURATION.replace("maxNumOfEndpoints: 2", "maxNumOfEndpoints: -1e308").encode(),
            CONFIGURATION.replace("weight: 2", "weight: .nan").encode(),
            BOMB,
            b"\xff" * 1000,
            b"a" * LARGE,
        )
        path = self.stack.directory / "config.yaml"
        replace(path, random.choice(contents))
        await asyncio.sleep(HOLDS)
        replace(path, CONFIGURATION.encode())
        await asyncio.sleep(HOLDS / 2)
