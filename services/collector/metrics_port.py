"""The one port on which the model servers of a pool show their metrics, when a flag says it (deprecated).

As in the Go original that port is for pools whose pods serve on one port each: with several, each port's server has its
own page, and the flag doesn't say which is which.
"""

from collections import Counter
from collections.abc import Mapping

from msgspec.structs import replace

from shared.model import Endpoint, Pool, join_host_port


def at_metrics_port(endpoints: Mapping[str, Endpoint], pool: Pool | None, port: int | None) -> Mapping[str, Endpoint]:
    """The endpoints, those that name no metrics address of their own with this port.

    Whether pods have one port says the pool; where it says nothing, an address that two endpoints share does.
    """
    if port is None or (pool is not None and len(pool.target_ports) > 1):
        return endpoints
    alone = Counter(one.address for one in endpoints.values())
    known = pool is not None and len(pool.target_ports) == 1
    return {
        id: replace(one, metrics_host=join_host_port(one.address, port))
        if not one.metrics_host and (known or alone[one.address] == 1)
        else one
        for id, one in endpoints.items()
    }
