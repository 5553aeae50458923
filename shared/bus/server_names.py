"""The addresses of NATS servers, by their host names.

A look-up can't be interrupted, and may take half a minute: glibc waits five seconds for a name server that is gone. So
an attempt to connect waits for it only as long as for a server, and the next one waits for the same look-up. The event
loop's own look-ups, of which uvloop has four at a time, would begin anew each time, keep others waiting, and keep the
process from its end.
"""

import asyncio
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
        self._turns: dict[tuple[str, int], dict[str, int]] = {}
        """By server, when each of its addresses was last the first, as a number that grows."""

    async def addresses(self, host: str, port: int, timeout: float) -> Sequence[str]:
        """Where to connect to; an address is its own. Each time that it is asked for the port, the address comes first
        that didn't for the longest time, whatever the name server's order is. If the look-up fails, or takes more than
        `timeout` seconds, the last addresses. Raises OSError where there are none."""
        if is_ip(host):
            return (host,)
        look_up = self._under_way.get(host)
        if look_up is None or look_up.done():
            look_up = self._under_way[host] = self._threads.submit(partial(self._look_up, host))
        done, _ = await asyncio.wait((asyncio.wrap_future(look_up),), timeout=timeout)
        if (last := self._last.get(host)) is None:
            failure = look_up.result() if done else None
            raise failure or OSError(f"the look-up of {host} takes longer than {timeout:g} s")
        turns = {address: turn for address, turn in self._turns.get((host, port), {}).items() if address in last}
        ordered = sorted(last, key=lambda address: turns.get(address, 0))
        turns[ordered[0]] = max(turns.values(), default=0) + 1
        self._turns[host, port] = turns
        return ordered

    def trouble(self, host: str) -> str:
        """Why addresses of this name may be old: its last look-up "fails: …" or "takes long". Empty if they aren't."""
        if host not in self._last:
            return ""
        look_up = self._under_way[host]
        if not look_up.done():
            return "takes long"
        failure = look_up.result()
        return "" if failure is None else f"fails: {failure}"

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
