"""Every subject, bucket and key of the bus.

A prefix separates installations that share one NATS: core subjects start with it, and names of buckets include it
(those of the default prefix are plain `endpoints`, `attributes`, `leases`). Foreign tokens are escaped: a byte that
NATS doesn't allow or reserves in a key becomes `=XX`, in hexadecimal.
"""

import re
from typing import NamedTuple

from shared.bus.errors import BusOptionError
from shared.model import Configuration, Endpoint, Fact, Model, ModelRewrite, Objective, Pool

DEFAULT_PREFIX = "pointsman"
WATCHER_LEASE = "watcher"
"""Who leads. All watchers of an installation share the bucket of facts, so they share one lease."""
EPOCH = "epoch"
SYNCED = "synced"
PEERS = "peers"
READER = "reader"
TIERS = ("watcher", "collector", "picker", READER)
"""The logins: of the tiers, and of readers, such as a console."""

_PREFIX = re.compile(r"[A-Za-z0-9_-]+")
MAX_PREFIX = 100
"""Characters: it is in every subject, which share a line of the protocol with ids and names."""
MAX_ID = 1536
"""Bytes of a process's escaped id in a subject, which shares a line with a pool, a prefix and a reply subject."""
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_/")
_PLAIN_BYTES = "".join(_PLAIN).encode()
_ALL_PLAIN = re.compile(r"[A-Za-z0-9_/-]+")
"""Most tokens are: to see that takes a tenth of the time of looking at each byte."""
_ESCAPED = re.compile(r"=([0-9A-F]{2})")
_EMPTY = "="


def escape(token: str) -> str:
    """One token of a key or subject: letters, digits, `-`, `_` and `/` stay, every other byte becomes `=XX`.

    >>> escape("default/vllm-0:8000")
    'default/vllm-0=3A8000'
    """
    if _ALL_PLAIN.fullmatch(token):
        return token
    if not token:
        return _EMPTY
    return "".join(
        char if char in _PLAIN else "".join(f"={byte:02X}" for byte in char.encode("utf-8", "surrogatepass"))
        for char in token
    )


def unescape(token: str) -> str:
    """The inverse of `escape`. Raises ValueError for what `escape` can't have made."""
    if _ALL_PLAIN.fullmatch(token):
        return token
    if token == _EMPTY:
        return ""
    parts = _ESCAPED.split(token)
    raw = b"".join(
        bytes([int(part, 16)]) if index % 2 else part.encode("utf-8", "surrogatepass")
        for index, part in enumerate(parts)
    )
    try:
        text = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError as error:
        raise ValueError(f"{token!r} is no escaped token: {error}") from error
    if not text or escape(text) != token:
        raise ValueError(f"{token!r} is no escaped token")
    return text


def pool_token(namespace: str, name: str) -> str:
    """`namespace_name`; an underscore within either part is escaped, so the first one separates them.

    >>> pool_token("default", "llama-8b")
    'default_llama-8b'
    """
    return f"{escape(namespace).replace('_', '=5F')}_{escape(name).replace('_', '=5F')}"


def split_pool(token: str) -> tuple[str, str]:
    """(namespace, name) of a pool token. Raises ValueError for anything else."""
    namespace, underscore, name = token.partition("_")
    if not underscore or "_" in name:
        raise ValueError(f"{token!r} is no pool token: namespace_name is needed")
    return (
        unescape(namespace.replace("=5F", "_")),
        unescape(name.replace("=5F", "_")),
    )


def id_fault(id: str, limit: int = MAX_ID) -> str | None:
    """Why an id can't be a token of a subject, or None."""
    raw = id.encode(errors="surrogatepass")
    size = len(raw) + 2 * len(raw.translate(None, _PLAIN_BYTES))  # as `escape` would make it, which takes far longer
    return None if size <= limit else f"an id that takes {size} bytes of a subject; {limit} are allowed"


class Key(NamedTuple):
    """A key of the endpoints bucket, taken apart."""

    pool: str
    """The pool's token."""
    kind: str
    """`endpoint`, `pool`, `objective`, `rewrite`, `model`, `config` or `synced`."""
    name: str = ""
    """The endpoint's id or the resource's name, unescaped; empty for kinds of which a pool has one."""


_NAMED = frozenset({"endpoint", "objective", "rewrite", "model"})
_SINGLE = frozenset({"pool", "config", SYNCED})


def parse_key(key: str) -> Key:
    """The parts of a pool's key in the endpoints bucket. Raises ValueError when it isn't one."""
    tokens = key.split(".")
    if len(tokens) == 3 and tokens[1] in _NAMED:
        return Key(tokens[0], tokens[1], unescape(tokens[2]))
    if len(tokens) == 2 and tokens[1] in _SINGLE:
        return Key(tokens[0], tokens[1])
    raise ValueError(f"{key!r} is no key of a pool: <pool>.<kind>.<name>, <pool>.pool, .config or .synced is needed")


def fact_key(pool: str, fact: Fact) -> str:
    """The key of the endpoints bucket under which a pool's fact stands; `pool` is the pool's token."""
    match fact:
        case Endpoint(id=name):
            return named_key(pool, "endpoint", name)
        case Objective(name=name):
            return named_key(pool, "objective", name)
        case ModelRewrite(name=name):
            return named_key(pool, "rewrite", name)
        case Model(name=name):
            return named_key(pool, "model", name)
        case Pool():
            return f"{pool}.pool"
        case Configuration():
            return f"{pool}.config"


def named_key(pool: str, kind: str, name: str) -> str:
    """The key of a fact of a kind that has names, be there such a fact or not."""
    return f"{pool}.{kind}.{escape(name)}"


def synced_key(pool: str) -> str:
    return f"{pool}.{SYNCED}"


class Subjects:
    """Names for one installation. Arguments called `pool` are pool tokens; ids are escaped here."""

    def __init__(self, prefix: str = DEFAULT_PREFIX) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise BusOptionError(
                f"{prefix!r}: letters, digits, - and _ are allowed, and at least one of them", "prefix"
            )
        if len(prefix) > MAX_PREFIX:
            raise BusOptionError(f"{len(prefix)} characters; at most {MAX_PREFIX} are allowed", "prefix")
        self.prefix = prefix
        self._lead = "" if prefix == DEFAULT_PREFIX else f"{prefix}_"
        self.endpoints_bucket = f"{self._lead}endpoints"
        self.attributes_bucket = f"{self._lead}attributes"
        self.leases_bucket = f"{self._lead}leases"

    @staticmethod
    def stream(bucket: str) -> str:
        """The JetStream stream behind a bucket."""
        return f"KV_{bucket}"

    # The endpoints bucket

    def fact(self, key: str) -> str:
        """Writes a key of the endpoints bucket."""
        return f"$KV.{self.endpoints_bucket}.{key}"

    def republished(self, key: str) -> str:
        """Where a key of the endpoints bucket appears once it is stored; `>` for all keys."""
        return f"{self.prefix}.kv.endpoints.{key}"

    def republished_key(self, subject: str) -> str:
        """The key in a republish subject. Raises ValueError for any other subject."""
        start = f"{self.prefix}.kv.endpoints."
        if not subject.startswith(start) or len(subject) == len(start):
            raise ValueError(f"{subject!r} is no republish subject of {self.prefix!r}")
        return subject[len(start) :]

    # The attributes bucket

    def frame(self, pool: str, sender: str, part: int) -> str:
        """Writes one part of a collector's frame."""
        return f"$KV.{self.attributes_bucket}.{pool}.{escape(sender)}.{part}"

    def frames(self, pool: str) -> str:
        """All frames of a pool: the bucket's own subject."""
        return f"$KV.{self.attributes_bucket}.{pool}.>"

    # Leases

    def lease(self, name: str) -> str:
        """Writes a lease."""
        return f"$KV.{self.leases_bucket}.{escape(name)}"

    @property
    def leases(self) -> str:
        """Writes any lease."""
        return f"$KV.{self.leases_bucket}.>"

    @property
    def lease_events(self) -> str:
        """All core subjects of leases."""
        return f"{self.prefix}.lease.>"

    def lease_released(self, name: str) -> str:
        """Core subject: its holder has let go of a lease."""
        return f"{self.prefix}.lease.{escape(name)}"

    def candidate(self, name: str, owner: str) -> str:
        """Core subject: somebody would hold a lease."""
        return f"{self.prefix}.lease.{escape(name)}.candidate.{escape(owner)}"

    def candidates(self, name: str) -> str:
        return f"{self.prefix}.lease.{escape(name)}.candidate.*"

    # Core subjects

    def load(self, pool: str, picker: str) -> str:
        return f"{self.prefix}.{pool}.load.{escape(picker)}"

    def loads(self, pool: str) -> str:
        return f"{self.prefix}.{pool}.load.*"

    def prefix_batch(self, pool: str, picker: str) -> str:
        """A picker's placements of prefixes."""
        return f"{self.prefix}.{pool}.prefix.{escape(picker)}"

    def prefix_batches(self, pool: str) -> str:
        return f"{self.prefix}.{pool}.prefix.*"

    def prefix_dump(self, pool: str, picker: str) -> str:
        """Requests to a picker for placements."""
        return f"{self.prefix}.{pool}.prefix.{escape(picker)}.dump"

    def prefix_dumps(self, pool: str) -> str:
        return f"{self.prefix}.{pool}.prefix.*.dump"

    def prefix_peers(self, pool: str) -> str:
        """Requests to all pickers that share placements."""
        return f"{self.prefix}.{pool}.prefix-peers"

    def member(self, pool: str, tier: str, id: str) -> str:
        return f"{self.prefix}.{pool}.member.{escape(tier)}.{escape(id)}"

    def members(self, pool: str, tier: str) -> str:
        return f"{self.prefix}.{pool}.member.{escape(tier)}.*"

    def inbox(self, tier: str) -> str:
        """The prefix of reply subjects of a tier. Nobody else receives them, and each installation has its own."""
        return f"_INBOX_{self._lead}{tier if tier in TIERS else READER}"

    def peer_inbox(self, tier: str) -> str:
        """Answers that processes of a tier give each other begin with this."""
        return f"{self.inbox(tier)}.{PEERS}"

    def query(self, pool: str, tier: str, id: str = "") -> str:
        """Queries to one member of a tier; without an id, to all of them."""
        subject = f"{self.prefix}.{pool}.query.{escape(tier)}"
        return f"{subject}.{escape(id)}" if id else subject

    def queries(self, pool: str) -> str:
        """Queries to anybody."""
        return f"{self.prefix}.{pool}.query.>"

    def actions(self, pool: str) -> str:
        """What people have watchers do."""
        return f"{self.prefix}.{pool}.action.watcher"

    @staticmethod
    def sender(subject: str, position: int = -1) -> str:
        """The id in a subject, by its position among the tokens; the raw token when it isn't escaped rightly."""
        token = subject.split(".")[position]
        try:
            return unescape(token)
        except ValueError:
            return token

    def __repr__(self) -> str:
        return f"<Subjects {self.prefix!r}>"
