"""The metrics port of a pool's model servers, from a deprecated flag.

As in the Go EPP, the flag only applies to pools with one port per pod. With several ports, each server has a metrics
page of its own.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from shared.model import Endpoint, Pool, join_host_port


def at_metrics_port(endpoints: Mapping[str, Endpoint], pool: Pool | None, port: int | None) -> Mapping[str, Endpoint]:
    """The endpoints with this metrics port, unless they have a metrics address of their own.

    If the pool doesn't say how many ports its pods have, endpoints with the same address show it.
    """
    if port is None or (pool is not None and len(pool.target_ports) > 1):
        return endpoints
    addresses = Counter(endpoint.address for endpoint in endpoints.values())
    one_port = pool is not None and len(pool.target_ports) == 1
    return {
        id: replace(endpoint, metrics_host=join_host_port(endpoint.address, port))
        if not endpoint.metrics_host and (one_port or addresses[endpoint.address] == 1)
        else endpoint
        for id, endpoint in endpoints.items()
    }
