"""Endpoints with host names, as a resolver follows them."""

from collections.abc import Callable, Iterable

from services.watcher.resolve import Names
from shared.model import Endpoint


def hosts_of(
    endpoints: Iterable[Endpoint],
    origin_of: Callable[[Endpoint], str] = lambda endpoint: "",
    before: Iterable[str] = (),
) -> dict[str, tuple[str, str]]:
    """The change to these endpoints, and no others, of those with the ids `before`."""
    return {**dict.fromkeys(before, ("", "")), **{each.id: (each.host, origin_of(each)) for each in endpoints}}


class Followed:
    """The names of the endpoints that are followed."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self._ids: set[str] = set()

    def change(
        self, endpoints: Iterable[Endpoint], origin_of: Callable[[Endpoint], str] = lambda endpoint: ""
    ) -> dict[str, tuple[str, str]]:
        """To these endpoints, and no others."""
        hosts = hosts_of(endpoints, origin_of, self._ids)
        self._ids = {id for id, (host, _) in hosts.items() if host}
        return hosts

    def follow(
        self, endpoints: Iterable[Endpoint], origin_of: Callable[[Endpoint], str] = lambda endpoint: ""
    ) -> list[str]:
        """Follow their names. Returns those that are forgotten."""
        for id, (host, origin) in reversed(self.change(endpoints, origin_of).items()):
            self.names.set(id, host, origin)
        return list(self.names.forget())
