"""A small DNS server for a cluster: what CoreDNS answers for Services, and nothing else.

A Service with an address has one A record, a headless one has those of its ready pods, and of each pod with a host
name. Names that don't exist get NXDOMAIN, other types an empty answer.
"""

import asyncio
import socket
import struct
from collections.abc import Mapping
from typing import Any, cast

_HEADER = struct.Struct("!6H")
_QUESTION = struct.Struct("!2H")
_A, _IN = 1, 1
_TTL = 1
DOMAIN = "cluster.local"

Records = Mapping[str, tuple[str, ...]]
"""IPv4 addresses by name, in lower case, without the last dot."""


def records(services: list[dict[str, Any]], slices: list[dict[str, Any]]) -> dict[str, tuple[str, ...]]:
    """The names of the Services, given the EndpointSlices of the cluster."""
    found: dict[str, tuple[str, ...]] = {}
    for service in services:
        metadata, spec = service["metadata"], service["spec"]
        name = f"{metadata['name']}.{metadata['namespace']}.svc.{DOMAIN}"
        if spec.get("clusterIP") not in (None, "", "None"):
            found[name] = (spec["clusterIP"],)
            continue
        addresses: list[str] = []
        for part in slices:
            own = part["metadata"]
            if own["namespace"] != metadata["namespace"]:
                continue
            if own.get("labels", {}).get("kubernetes.io/service-name") != metadata["name"]:
                continue
            for endpoint in part.get("endpoints") or ():
                if endpoint["conditions"].get("ready") or spec.get("publishNotReadyAddresses"):
                    addresses += endpoint["addresses"]
                    if host := endpoint.get("hostname"):
                        found[f"{host}.{name}"] = tuple(endpoint["addresses"])
        found[name] = tuple(addresses)
    return found


def answer(query: bytes, known: Records) -> bytes:
    """The response to a message with one question. Raises ValueError and struct.error for anything else."""
    number, flags, questions, *_ = _HEADER.unpack_from(query)
    if questions != 1:
        raise ValueError(f"{questions} questions")
    labels, position = [], _HEADER.size
    while length := query[position]:
        labels.append(query[position + 1 : position + 1 + length].decode("ascii").lower())
        position += 1 + length
    position += 1
    kind, kind_of_net = _QUESTION.unpack_from(query, position)
    question = query[_HEADER.size : position + _QUESTION.size]
    name = ".".join(labels)
    addresses = known.get(name)
    code = 0 if addresses is not None else 3  # NXDOMAIN
    given = addresses or () if (kind, kind_of_net) == (_A, _IN) else ()
    response = _HEADER.pack(number, 0x8580 | flags & 0x0100 | code, 1, len(given), 0, 0) + question
    for address in given:
        response += struct.pack("!HHHIH", 0xC00C, _A, _IN, _TTL, 4) + socket.inet_aton(address)
    return response


class DnsServer(asyncio.DatagramProtocol):
    """Answers from `known`, which its owner replaces."""

    def __init__(self) -> None:
        self.known: Records = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        try:
            self._transport.sendto(answer(data, self.known), addr)
        except (ValueError, IndexError, struct.error):
            return  # not a question that anybody here asks
