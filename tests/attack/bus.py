"""Somebody on the bus who publishes what is malformed, or can't be true, on every subject and key.

It listens, and sends back what it heard: cut, mutated where that makes it unreadable, and with times, epochs and
sequences that nobody has. What would be a lie well told is left out: whoever is on the bus is trusted with facts.
"""

import contextlib
import math
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random

import nats
from msgspec import Struct, structs
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error

from shared.bus.codec import decode, decode_fact, encode
from shared.bus.errors import Malformed
from shared.bus.facts import EPOCH_HEADER, SEQUENCE_HEADER
from shared.bus.messages import Candidate, Epoch, FactEnvelope, Frame, Holder, Load, Member, Message, Synced
from shared.bus.subjects import EPOCH, Subjects, pool_token, synced_key
from tests.attack.fronts import Act, Front, Scene

POOL = pool_token("default", "default")
SUBJECTS = Subjects()
KEPT = 20
"""Messages of each kind that are remembered."""
TIMES = (1e6, -1e6, 1e18, math.nan, math.inf, -math.inf)
BEYOND = (2**64 - 1, 2**63, 2**62)
OURS = ("pointsman.", "$KV.")
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


class Heard(Struct, frozen=True):
    """A message of somebody else."""

    subject: str
    data: bytes


def kind_of(subject: str) -> str:
    """Which of `KINDS` a subject carries; empty for none."""
    tokens = subject.split(".")
    if subject.startswith(f"$KV.{SUBJECTS.attributes_bucket}."):
        return "frame"
    if subject.startswith(f"$KV.{SUBJECTS.leases_bucket}."):
        return "lease"
    if subject.startswith(f"$KV.{SUBJECTS.endpoints_bucket}."):
        return {"epoch": "epoch", "synced": "synced"}.get(tokens[-1], "fact")
    return next((kind for kind in ("load", "member", "candidate") if kind in tokens), "")


def readable(kind: str, data: bytes) -> bool:
    """Whether its readers take it for a message."""
    try:
        message = decode(KINDS[kind], data)
        if isinstance(message, FactEnvelope):
            decode_fact(message.fact)
    except (Malformed, UnicodeDecodeError):
        return False
    return True


class Bus(Front):
    """A client of NATS with all rights."""

    name = "bus"

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._nats = Client()
        self._heard: dict[str, deque[Heard]] = defaultdict(lambda: deque(maxlen=KEPT))

    @asynccontextmanager
    async def ready(self) -> AsyncIterator[None]:
        async def ignore(_: Exception) -> None: ...

        self._nats = await nats.connect(self.stack.nats.url, error_cb=ignore, max_reconnect_attempts=-1)
        for subject in (f"{SUBJECTS.prefix}.>", "$KV.>"):
            await self._nats.subscribe(subject, cb=self._hear)
        try:
            yield
        finally:
            await self._nats.close()

    async def _hear(self, message: Msg) -> None:
        kind = kind_of(message.subject)
        if kind and not message.headers and readable(kind, message.data):
            self._heard[kind].append(Heard(message.subject, message.data))
        elif kind and message.headers and EPOCH_HEADER not in message.headers and readable(kind, message.data):
            self._heard[kind].append(Heard(message.subject, message.data))  # a write that is fenced

    def acts(self) -> Mapping[str, Act]:
        return {
            "garbage": self._garbage,
            "truncated": self._truncated,
            "mutated": self._mutated,
            "texts": self._texts,
            "other-kinds": self._other_kinds,
            "times": self._times,
            "epochs": self._epochs,
            "sequences": self._sequences,
            "purges": self._purges,
            "strangers": self._strangers,
            "large": self._large,
        }

    async def _send(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        with contextlib.suppress(Error):
            await self._nats.publish(subject, data, headers=headers)
            await self._nats.flush(2)

    def _some(self, random: Random, kinds: Sequence[str] = tuple(KINDS)) -> list[tuple[str, Heard]]:
        """A message of each of these kinds that was heard."""
        return [(kind, random.choice(list(self._heard[kind]))) for kind in kinds if self._heard[kind]]

    async def _garbage(self, random: Random) -> None:
        for _, heard in self._some(random):
            size = random.choice((0, 1, 30, 10_000))
            await self._send(
                heard.subject, random.choice((random.randbytes(size), b"\x93" * size, b"\xdf\xff\xff\xff\xff"))
            )

    async def _truncated(self, random: Random) -> None:
        for _, heard in self._some(random):
            await self._send(heard.subject, heard.data[: random.randrange(len(heard.data))])

    async def _mutated(self, random: Random) -> None:
        """Bytes changed, as long as that leaves nothing that can be read."""
        for kind, heard in self._some(random):
            for _ in range(20):
                data = bytearray(heard.data)
                for _ in range(random.randint(1, 4)):
                    data[random.randrange(len(data))] = random.randrange(256)
                if not readable(kind, bytes(data)):
                    await self._send(heard.subject, bytes(data))
                    break

    async def _texts(self, random: Random) -> None:
        """Texts that are no UTF-8: names of fields and senders, tags, values."""
        for kind, heard in self._some(random):
            letters = [at for at, byte in enumerate(heard.data) if chr(byte).isalpha() and byte < 0x80]
            for at in random.sample(letters, min(len(letters), 5)):
                data = heard.data[:at] + b"\xff" + heard.data[at + 1 :]
                if not readable(kind, data):
                    await self._send(heard.subject, data)

    async def _other_kinds(self, random: Random) -> None:
        """Each message where those of another kind are expected."""
        some = self._some(random)
        for kind, heard in some:
            other, place = random.choice(some)
            if other != kind:
                await self._send(place.subject, heard.data)

    async def _times(self, random: Random) -> None:
        """Frames, loads and heartbeats of their own senders, sent at times at which they can't have been."""
        for kind, heard in self._some(random, ("frame", "load", "member")):
            message = decode(KINDS[kind], heard.data)
            assert isinstance(message, Frame | Load | Member)
            sent = random.choice(TIMES)
            await self._send(heard.subject, encode(structs.replace(message, sent=message.sent + sent)))

    async def _epochs(self, random: Random) -> None:
        """Owners of a time that is yet to come."""
        epoch = random.choice(BEYOND)
        await self._send(SUBJECTS.fact(EPOCH), encode(Epoch(epoch=epoch, owner="attack")))
        for kind, heard in self._some(random, ("fact", "synced")):
            message = decode(KINDS[kind], heard.data)
            assert isinstance(message, FactEnvelope | Synced)
            await self._send(heard.subject, encode(structs.replace(message, epoch=epoch)))

    async def _sequences(self, random: Random) -> None:
        """Closings of bursts that there weren't, of the owner's own epoch."""
        for _, heard in self._some(random, ("synced",)):
            message = decode(Synced, heard.data)
            forged = structs.replace(
                message, sequence=random.choice((*BEYOND, -1)), count=random.choice((-1, 0, 10**9))
            )
            await self._send(heard.subject, encode(forged))

    async def _purges(self, random: Random) -> None:
        """Deletes whose order is none."""
        for _, heard in self._some(random, ("fact", "synced")):
            order = random.choice(("", "-1", "a", "9" * 30, str(BEYOND[0])))
            headers = {
                "KV-Operation": random.choice(("PURGE", "DEL", "?")),
                EPOCH_HEADER: order,
                SEQUENCE_HEADER: order,
            }
            await self._send(heard.subject.replace("$KV.endpoints.", f"{SUBJECTS.prefix}.kv.endpoints."), b"", headers)

    async def _strangers(self, random: Random) -> None:
        """Subjects and keys whose tokens are none."""
        tokens = random.choice(("=", "=ZZ", "=FF=FE", "a.b.c.d", "x" * 3000, "=00", "endpoint", "_"))
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

    async def _large(self, random: Random) -> None:
        """As much as NATS takes."""
        data = random.choice((b"\x00", b"\x91", b"\xc4", b"\xff")) * 1_000_000
        for _, heard in self._some(random):
            await self._send(heard.subject, data)
