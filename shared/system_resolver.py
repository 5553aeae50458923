"""The system's resolver of host names."""

import socket


def addresses_of(host: str) -> list[str]:
    """The addresses of a host name, each once, in the system's order. Blocks, maybe for half a minute: to be called in
    a thread (`DaemonThreads`). Raises OSError (socket.gaierror), and UnicodeError for what is no host name."""
    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))
