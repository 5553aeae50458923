"""A client of NATS that publishes what is malformed, or can't be true, on every subject and key.

It repeats messages that it has received: cut, mutated until they are unreadable, and with impossible times, epochs and
sequences. Plausible lies are left out: clients of NATS are trusted with facts.
"""

import contextlib
import math
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import nats
from msgspec import structs
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error

from shared.bus.codec import decode, decode_fact, encode
from shared.bus.errors import Malformed
from shared.bus.facts import EPOCH_HEADER, SEQUENCE_HEADER
from shared.bus.messages import Candidate, Epoch, FactEnvelope, Frame, Holder, Load, Member, Message, Synced
from shared.bus.replies import BEFORE, STREAM, SUBJECT
from shared.bus.subjects import EPOCH, Subjects, pool_token, synced_key
from tests.attack.fronts import Front, Scene

POOL = pool_token("default", "default")
SUBJECTS = Subjects()
KEPT = 20
"""Messages of each kind that are remembered."""
TIMES = (1e6, -1e6, 1e18, math.nan, math.inf, -math.inf)
BEYOND = (2**64 - 1, 2**63, 2**62)
TOKENS = ("=", "=ZZ", "=FF=FE", "a.b.c.d", "x" * 3000, "=00", "endpoint", "_")
KINDS: dict[str, type[Message]] = {
    "load": Load,
    "member": Member,
    "candidate": Candidate,
    "frame": Frame,
    "fact": FactEnvelope,
    "synced": Synced,
    "epoch": Epoch,
    "lease": Holder,
}


def kind_of(subject: str) -> str:
    """The one of `KINDS` that a subject carries; empty for none."""
    tokens = subject.split(".")
    if tokens[0] == "$KV":
        kinds = {SUBJECTS.attributes_bucket: "frame", SUBJECTS.leases_bucket: "lease"}
        special = {"epoch": "epoch", "synced": "synced"}.get(tokens[-1], "fact")
        return kinds.get(tokens[1], special if tokens[1] == SUBJECTS.endpoints_bucket else "")
    return next((kind for kind in ("load", "member", "candidate") if kind in tokens), "")


def readable(kind: str, data: bytes) -> bool:
    """Whether its readers accept it as a message."""
    try:
        found = decode(KINDS[kind], data)
        if isinstance(found, FactEnvelope):
            decode_fact(found.fact)
    except (Malformed, UnicodeDecodeError):
        return False
    return True


class Bus(Front):
    """A client of NATS with all rights."""

    name = "bus"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._nats = Client()
        self._received: dict[str, deque[tuple[str, bytes]]] = defaultdict(lambda: deque(maxlen=KEPT))
        """Subjects and messages of others, by kind."""

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        async def ignore(_: Exception) -> None: ...

        self._nats = await nats.connect(self.stack.nats.url, error_cb=ignore, max_reconnect_attempts=-1)
        for subject in (f"{SUBJECTS.prefix}.>", "$KV.>"):
            await self._nats.subscribe(subject, cb=self._receive)
        try:
            yield
        finally:
            await self._nats.close()

    async def _receive(self, received: Msg) -> None:
        kind = kind_of(received.subject)
        fenced = EPOCH_HEADER in (received.headers or {})
        if kind and not fenced and readable(kind, received.data):
            self._received[kind].append((received.subject, received.data))

    async def _send(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        with contextlib.suppress(Error):
            await self._nats.publish(subject, data, headers=headers)
            await self._nats.flush(2)

    def _some(self, random: Random, kinds: Sequence[str] = tuple(KINDS)) -> list[tuple[str, str, bytes]]:
        """Kind, subject and data of a received message of each of these kinds."""
        return [(kind, *random.choice(list(self._received[kind]))) for kind in kinds if self._received[kind]]

    async def _forge(self, random: Random, kinds: Sequence[str], **changes: Any) -> None:
        """Repeat received messages with other fields."""
        for kind, subject, data in self._some(random, kinds):
            await self._send(subject, encode(structs.replace(decode(KINDS[kind], data), **changes)))

    async def act_garbage(self, random: Random) -> None:
        for _, subject, _ in self._some(random):
            size = random.choice((0, 1, 30, 10_000))
            await self._send(subject, random.choice((random.randbytes(size), b"\x93" * size, b"\xdf\xff\xff\xff\xff")))

    async def act_truncated(self, random: Random) -> None:
        for _, subject, data in self._some(random):
            await self._send(subject, data[: random.randrange(len(data))])

    async def act_mutated(self, random: Random) -> None:
        """Changed bytes, if they leave nothing that can be read."""
        for kind, subject, original in self._some(random):
            for _ in range(20):
                data = bytearray(original)
                for _ in range(random.randint(1, 4)):
                    data[random.randrange(len(data))] = random.randrange(256)
                if not readable(kind, bytes(data)):
                    await self._send(subject, bytes(data))
                    break

    async def act_texts(self, random: Random) -> None:
        """Texts that are no UTF-8: names of fields and senders, tags, values."""
        for kind, subject, original in self._some(random):
            letters = [at for at, byte in enumerate(original) if chr(byte).isalpha() and byte < 0x80]
            for at in random.sample(letters, min(len(letters), 5)):
                data = original[:at] + b"\xff" + original[at + 1 :]
                if not readable(kind, data):
                    await self._send(subject, data)

    async def act_other_kinds(self, random: Random) -> None:
        """Messages where those of another kind are expected."""
        some = self._some(random)
        for kind, _, data in some:
            other, subject, _ = random.choice(some)
            if other != kind:
                await self._send(subject, data)

    async def act_times(self, random: Random) -> None:
        """Frames, loads and heartbeats of their own senders, with impossible times."""
        for kind, subject, data in self._some(random, ("frame", "load", "member")):
            found: Any = decode(KINDS[kind], data)
            await self._send(subject, encode(structs.replace(found, sent=found.sent + random.choice(TIMES))))

    async def act_epochs(self, random: Random) -> None:
        """Owners of the future."""
        epoch = random.choice(BEYOND)
        await self._send(SUBJECTS.fact(EPOCH), encode(Epoch(epoch=epoch, owner="attack")))
        await self._forge(random, ("fact", "synced"), epoch=epoch)

    async def act_sequences(self, random: Random) -> None:
        """The ends of bursts that didn't happen, of the owner's own epoch."""
        sequence, count = random.choice((*BEYOND, -1)), random.choice((-1, 0, 10**9))
        await self._forge(random, ("synced",), sequence=sequence, count=count)

    async def act_purges(self, random: Random) -> None:
        """Deletes with an invalid order."""
        for _, subject, _ in self._some(random, ("fact", "synced")):
            order, operation = (
                random.choice(("", "-1", "a", "9" * 30, str(BEYOND[0]))),
                random.choice(("PURGE", "DEL", "?")),
            )
            headers = {"KV-Operation": operation, EPOCH_HEADER: order, SEQUENCE_HEADER: order}
            # as the server publishes what the bucket has stored
            headers |= {STREAM: f"KV_{SUBJECTS.endpoints_bucket}", SUBJECT: subject, BEFORE: "1"}
            await self._send(subject.replace("$KV.endpoints.", f"{SUBJECTS.prefix}.kv.endpoints."), b"", headers)

    async def act_strangers(self, random: Random) -> None:
        """Subjects and keys with invalid tokens."""
        tokens = random.choice(TOKENS)
        for subject in (
            SUBJECTS.fact(f"{POOL}.endpoint.{tokens}"),
            SUBJECTS.fact(f"{POOL}.{tokens}"),
            f"$KV.{SUBJECTS.attributes_bucket}.{POOL}.{tokens}.0",
            f"{SUBJECTS.prefix}.{POOL}.load.{tokens}",
            f"{SUBJECTS.prefix}.{POOL}.member.collector.{tokens}",
            SUBJECTS.republished(synced_key(POOL)),
            SUBJECTS.republished(f"{POOL}.endpoint.{tokens}"),
        ):
            await self._send(subject, random.randbytes(40))

    async def act_large(self, random: Random) -> None:
        """As much as NATS takes."""
        data = random.choice((b"\x00", b"\x91", b"\xc4", b"\xff")) * 1_000_000
        for _, subject, _ in self._some(random):
            await self._send(subject, data)
