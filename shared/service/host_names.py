"""The hosts under which browsers may reach a server that trusts whoever reaches it.

A page of another origin can have its own name lead to this machine (DNS rebinding), and would read the answers as its
own. IP addresses and `localhost` can't be made to lead elsewhere.
"""

from collections.abc import Collection

from shared.model import is_ip, split_host_port

SHOWN = 80
"""Characters of an unknown host that the response repeats."""


class HostNames:
    """IP addresses, `localhost`, and these names; `flag` is the setting that has them."""

    def __init__(self, names: Collection[str], flag: str) -> None:
        self._names = {name.lower() for name in names} | {"localhost"}
        self._flag = flag

    def refusal(self, host: str) -> str | None:
        """Why a request with this `Host` isn't answered, or None."""
        try:
            name, _ = split_host_port(host)
        except ValueError:
            name = ""
        if name.lower() in self._names or is_ip(name):
            return None
        return f"{host[:SHOWN]!r} is no name of this process; {self._flag} lists them"

    def __repr__(self) -> str:
        return f"<HostNames {', '.join(sorted(self._names))}>"
