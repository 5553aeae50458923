"""Which facts can be published.

Readers of files and objects check facts with the usual limit of a message; the publisher checks again with that of the
connected server.
"""

from shared.bus.codec import encode_fact
from shared.bus.subjects import fact_key
from shared.model import Endpoint, Fact, entries_of, unusable_address

MAX_PAYLOAD = 2**20
"""Bytes of a message, nats-server's default."""
HEADROOM = 8 * 2**10
"""Bytes of a message beside its fact: headers, those of its copy on the republish subject, the envelope."""
MAX_FACT = MAX_PAYLOAD - HEADROOM
"""Bytes of an encoded fact."""
MAX_NAME = 1536
"""Bytes of an escaped name in a key: nats-server accepts lines of 4096 bytes, with subject and reply subject."""
MAX_POOL = 1024
"""Bytes of a pool's token in a key."""


def fault(fact: Fact, limit: int = MAX_FACT, max_entries: int | None = None) -> str | None:
    """Why the fact can't be published if messages hold facts of `limit` bytes and, if given, readers accept
    `max_entries`; None if it can."""
    try:
        size = len(encode_fact(fact))
    except (ValueError, OverflowError, TypeError, RecursionError) as error:  # UnicodeError is a ValueError
        return f"no message can hold it: {error}"
    if size > limit:
        return f"it makes a message of {size} bytes; NATS takes {limit} at most"
    if max_entries is not None and (count := entries_of(fact)) > max_entries:
        return f"it has {count} entries; {max_entries} are allowed"
    if isinstance(fact, Endpoint) and (reason := unusable_address(fact)):
        return reason
    name = len(fact_key("", fact).rpartition(".")[2])
    if name > MAX_NAME:
        return f"its name takes {name} bytes of a key on the bus; {MAX_NAME} are allowed"
    return None


def fact_limit(max_payload: int) -> int:
    """Bytes of a fact for a server with this limit of messages: `MAX_FACT` at most, so that files are valid
    everywhere."""
    return min(MAX_FACT, max_payload - HEADROOM)
