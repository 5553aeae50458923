"""The addresses of NATS servers, by their host names.

A look-up can't be interrupted, and may take half a minute: glibc waits five seconds for a name server that is gone. So
an attempt to connect waits for it only as long as for a server, and the next one waits for the same look-up. The event
loop's own look-ups, of which uvloop has four at a time, would begin anew each time, keep others waiting, and keep the
process from its end.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial

from shared.daemon_threads import DaemonThreads
from shared.model import is_ip
from shared.system_resolver import addresses_of

THREADS = 16
"""Names that are looked up at a time. A process has a few servers."""
MAX_ADDRESSES = 16
"""Addresses of a name that are tried."""


class ServerNames:
    """The look-ups of a process's servers. Each name has one at a time, and keeps its last addresses."""

    def __init__(self) -> None:
        self._threads = DaemonThreads(THREADS, "look-up")
        self._under_way: dict[str, Future[OSError | None]] = {}
        self._last: dict[str, list[str]] = {}
        self._asked = Counter[tuple[str, int]]()

    async def addresses(self, host: str, port: int, timeout: float) -> Sequence[str]:
        """Where to connect to, another address first each time that it is asked for the port; an address is its own. If
        the look-up fails, or takes more than `timeout` seconds, the last addresses. Raises OSError where there are
        none."""
        if is_ip(host):
            return (host,)
        look_up = self._under_way.get(host)
        if look_up is None or look_up.done():
            look_up = self._under_way[host] = self._threads.submit(partial(self._look_up, host))
        done, _ = await asyncio.wait((asyncio.wrap_future(look_up),), timeout=timeout)
        if (last := self._last.get(host)) is None:
            failure = look_up.result() if done else None
            raise failure or OSError(f"the look-up of {host} takes longer than {timeout:g} s")
        first = self._asked[host, port] % len(last)
        self._asked[host, port] += 1
        return last[first:] + last[:first]

    def trouble(self, host: str) -> str:
        """Why addresses of this name may be old: its last look-up failed, or takes long. Empty if they aren't."""
        if host not in self._last:
            return ""
        look_up = self._under_way[host]
        failure = look_up.result() if look_up.done() else "it takes long"
        return "" if failure is None else str(failure)

    def _look_up(self, host: str) -> OSError | None:
        """In a thread. Why it fails."""
        try:
            found = addresses_of(host)
        except OSError as error:
            return error
        except UnicodeError as error:
            return OSError(f"{host[:100]} is no host name: {error}")
        self._last[host] = found[:MAX_ADDRESSES]
        return None

    def __repr__(self) -> str:
        return f"<ServerNames {self._last}>"
