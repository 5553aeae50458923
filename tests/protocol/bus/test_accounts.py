"""deploy/nats/accounts.conf on the real nats-server: who may publish and hear what."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from msgspec import Raw
from nats.aio.msg import Msg

from services.watcher.actions import Actions
from shared.bus import jetstream
from shared.bus.accounts import OPERATOR, installation, permissions
from shared.bus.action_messages import Drain
from shared.bus.codec import encode, encode_fact
from shared.bus.connection import Bus
from shared.bus.errors import BusError
from shared.bus.facts import Reset, Upsert
from shared.bus.frame_bucket import FrameBucket
from shared.bus.lease import Lease
from shared.bus.messages import FactEnvelope
from shared.bus.publisher import FactPublisher
from shared.bus.query_client import query_members
from shared.bus.query_messages import Query, StatusQuery
from shared.bus.reply_subjects import SERVICE_REPLIES
from shared.bus.responder import Responder
from shared.bus.subjects import EPOCH, TIERS, Subjects, pool_token, synced_key
from shared.model import Endpoint
from shared.tasks import cancel
from tests.nats import NatsServer
from tests.protocol.bus.conftest import POOL, endpoints, leading, reading
from tests.protocol.bus.logins import PASSWORDS, secured, secured_cluster, violations
from tests.waiting import TIMEOUT, eventually

S = Subjects()
NOBODY: frozenset[str] = frozenset()
KEY = f"{POOL}.endpoint.a"
API = "$JS.API.STREAM"

PUBLISH: dict[str, frozenset[str]] = {
    S.fact(KEY): frozenset({"watcher"}),
    S.fact(f"{POOL}.config"): frozenset({"watcher"}),
    S.fact(f"{POOL}.synced"): frozenset({"watcher"}),
    S.fact(EPOCH): frozenset({"watcher"}),
    S.republished(KEY): NOBODY,
    S.lease("watcher"): frozenset({"watcher"}),
    S.lease_released("watcher"): frozenset({"watcher"}),
    S.candidate("watcher", "w1"): frozenset({"watcher"}),
    S.frame(POOL, "c1", 0): frozenset({"watcher", "collector"}),
    S.load(POOL, "p1"): frozenset({"picker"}),
    S.prefix_batch(POOL, "p1"): frozenset({"picker"}),
    S.prefix_dump(POOL, "p1"): frozenset({"picker"}),
    S.prefix_peers(POOL): frozenset({"picker"}),
    **{S.member(POOL, tier, "m1"): frozenset({tier}) for tier in ("watcher", "collector", "picker")},
    **{
        S.query(POOL, tier, id): frozenset({"reader"})
        for tier in ("watcher", "collector", "picker")
        for id in ("", "m1")
    },
    S.actions(POOL): frozenset({OPERATOR}),
    **{f"{S.inbox(tier)}.x.1": NOBODY for tier in ("watcher", "collector", "reader")},
    f"{S.inbox('picker')}.x.1": NOBODY,
    f"{S.peer_inbox('picker')}.x.1": frozenset({"picker"}),
    f"{SERVICE_REPLIES}x.1": frozenset({"watcher", "collector", "picker"}),
    **{
        f"{API}.{operation}.KV_{bucket}": frozenset({"watcher"})
        for bucket in ("endpoints", "attributes", "leases")
        for operation in ("CREATE", "UPDATE")
    },
    f"{API}.PURGE.KV_endpoints": frozenset({"watcher"}),
    f"{API}.MSG.DELETE.KV_endpoints": frozenset({"watcher"}),
    f"{API}.MSG.GET.KV_endpoints": frozenset({"watcher", "reader"}),
    f"{API}.INFO.KV_endpoints": frozenset({"watcher", "reader"}),
    f"{API}.DELETE.KV_endpoints": NOBODY,
    f"{API}.CREATE.mine": NOBODY,
    "$JS.API.CONSUMER.CREATE.KV_endpoints": NOBODY,
    "$JS.API.DIRECT.GET.KV_endpoints": frozenset(TIERS),
    "$JS.API.DIRECT.GET.KV_attributes": frozenset({"picker", "reader"}),
    "$SYS.REQ.SERVER.PING": NOBODY,
    "anything": NOBODY,
}
"""Subject: the logins that may publish it; operators may what readers may."""

SUBSCRIBE: dict[str, frozenset[str]] = {
    S.republished(f"{POOL}.>"): frozenset(TIERS),
    S.frames(POOL): frozenset({"picker", "reader"}),
    S.fact(">"): NOBODY,
    S.candidates("watcher"): frozenset({"watcher", "reader"}),
    S.lease_released("watcher"): frozenset({"watcher", "reader"}),
    S.loads(POOL): frozenset({"picker", "reader"}),
    S.prefix_batches(POOL): frozenset({"picker", "reader"}),
    S.prefix_dump(POOL, "p1"): frozenset({"picker", "reader"}),
    S.prefix_peers(POOL): frozenset({"picker", "reader"}),
    **{S.members(POOL, tier): frozenset({tier, "reader"}) for tier in ("watcher", "collector", "picker")},
    **{
        S.query(POOL, tier, id): frozenset({tier, "reader"})
        for tier in ("watcher", "collector", "picker")
        for id in ("", "m1")
    },
    S.actions(POOL): frozenset({"watcher", "reader"}),
    **{f"{S.inbox(tier)}.x.*": frozenset({tier}) for tier in TIERS},
    f"{SERVICE_REPLIES}>": NOBODY,
    "_INBOX.>": NOBODY,
    ">": NOBODY,
}
"""Subject: the logins that may hear it; operators may what readers may."""


class Login:
    """A connection of a tier, in NATS's protocol by hand: what was refused is known before the answer to a PING."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def is_allowed(self, command: str | bytes) -> bool:
        """Whether the server takes a command, or several."""
        self._writer.write((command.encode() if isinstance(command, str) else command) + b"\r\nPING\r\n")
        refused = []
        while (line := (await self._reader.readline()).decode().strip()) != "PONG":
            assert line, "the server has closed the connection"
            if line.startswith("-ERR"):
                assert "Permissions Violation" in line, line
                refused.append(line)
        return not refused

    async def may_publish(self, subject: str) -> bool:
        return await self.is_allowed(f"PUB {subject} 4\r\njunk")

    async def may_subscribe(self, subject: str) -> bool:
        return await self.is_allowed(f"SUB {subject} 1\r\nUNSUB 1")


@asynccontextmanager
async def logged_in(server: NatsServer) -> AsyncIterator[Mapping[str, Login]]:
    made = {}
    async with AsyncExitStack() as stack:
        for tier, password in PASSWORDS.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.callback(writer.close)
            options = {"user": tier, "pass": password, "verbose": False, "headers": True}
            login = made[tier] = Login(reader, writer)
            assert await login.is_allowed(f"CONNECT {json.dumps(options)}")
        yield made


async def test_a_tier_publishes_and_hears_only_what_is_its_own(tmp_path: Path) -> None:
    async with secured(tmp_path) as server, logged_in(server) as logins:
        for subject, tiers in PUBLISH.items():
            allowed = {tier for tier, login in logins.items() if await login.may_publish(subject)}
            assert allowed == with_operators(tiers), subject
        for subject, tiers in SUBSCRIBE.items():
            allowed = {tier for tier, login in logins.items() if await login.may_subscribe(subject)}
            assert allowed == with_operators(tiers), subject


def with_operators(tiers: frozenset[str]) -> frozenset[str]:
    return tiers | {OPERATOR} if "reader" in tiers else tiers


async def test_no_tier_may_publish_where_a_message_of_its_own_wants_its_answer(tmp_path: Path) -> None:
    async with secured(tmp_path) as server, logged_in(server) as logins:
        for tier in ("watcher", "collector", "picker"):
            login, own = logins[tier], S.member(POOL, tier, "x")
            assert await login.may_subscribe(S.members(POOL, tier))
            assert await login.is_allowed(f"SUB {S.members(POOL, tier)} 7")
            assert await login.is_allowed(f"PUB {own} anything 4\r\njunk")
            assert not await login.may_publish("anything")


def test_every_subject_of_the_bus_is_in_the_table() -> None:
    """A new one needs somebody who may publish it."""
    arguments = {"key": KEY, "pool": POOL, "picker": "p1", "id": "m1", "sender": "c1", "part": 0, "owner": "w1"}
    no_subjects = {"stream", "sender", "republished_key", "inbox", "peer_inbox"}
    known = {*PUBLISH, *SUBSCRIBE, S.leases, S.lease_events, *_patterns()}
    for name in [name for name in vars(Subjects) if not name.startswith("_") and name not in no_subjects]:
        made = getattr(S, name)
        if callable(made):
            named = made.__code__.co_varnames[1 : made.__code__.co_argcount]
            made = made(**{name: arguments.get(name, "watcher") for name in named})
        assert made in known, f"{name}: {made}"


def _patterns() -> set[str]:
    return {subject for may in permissions(S, [POOL]).values() for subject in (*may.publish, *may.subscribe)}


@pytest.mark.parametrize(
    ("options", "own", "other"),
    [
        ({"prefix": "second"}, Subjects("second").load(POOL, "p"), S.load(POOL, "p")),
        ({"pool": POOL}, S.load(POOL, "p"), S.load(pool_token("default", "other"), "p")),
    ],
    ids=["prefix", "pool"],
)
async def test_an_installation_can_be_kept_from_another(
    tmp_path: Path, options: dict[str, str], own: str, other: str
) -> None:
    subjects = Subjects(options.get("prefix", "pointsman"))
    accounts = installation(subjects, [options.get("pool", "*")])
    async with secured(tmp_path, accounts) as server, logged_in(server) as logins:
        assert await logins["picker"].may_publish(own)
        assert not await logins["picker"].may_publish(other)


class Redirected(NamedTuple):
    """Requests that may be sent, and where their answers are to go."""

    logins: tuple[str, ...]
    subject: str
    bodies: tuple[bytes, ...]
    targets: tuple[str, ...]


def snapshot_of(bucket: str) -> str:
    return f"$JS.API.DIRECT.GET.{S.stream(bucket)}"


def last(subject: str) -> bytes:
    return json.dumps({"last_by_subj": subject}).encode()


EMPTY_POOL = pool_token("default", "empty")
A, B, C, GONE = endpoints("a", "b", "c", "gone")
ALL_BUT_WATCHERS = ("collector", "picker", "reader")
FACTS = snapshot_of("endpoints")
MISS, EVERYTHING = last(S.fact("nothing")), b'{"seq":1,"batch":9,"next_by_subj":"$KV.endpoints.>"}'
BUCKETS = ("endpoints", "attributes", "leases")
DESTRUCTION = tuple(f"{API}.{what}.KV_{bucket}" for what in ("DELETE", "PURGE") for bucket in BUCKETS)
WRITES = (S.lease("watcher"), S.fact(EPOCH), S.fact(f"{POOL}.endpoint.evil"), f"{API}.DELETE.KV_endpoints")

DRAIN = Drain(endpoint="x", drain=True)

REDIRECTED = {
    "streams are deleted": Redirected(ALL_BUT_WATCHERS, FACTS, (MISS, EVERYTHING), DESTRUCTION),
    "the lease is overwritten": Redirected(ALL_BUT_WATCHERS, FACTS, (MISS, EVERYTHING), (S.lease("watcher"),)),
    "facts are copied": Redirected(
        ALL_BUT_WATCHERS,
        FACTS,
        (*map(last, map(S.fact, (A, EPOCH, synced_key(POOL)))), EVERYTHING),
        tuple(to(key) for to in (S.fact, S.republished) for key in (A, B, EPOCH, synced_key(POOL))),
    ),
    "a delete is copied": Redirected(
        ALL_BUT_WATCHERS,
        FACTS,
        (last(S.fact(GONE)),),
        tuple(to(key) for to in (S.fact, S.republished) for key in (A, B)),
    ),
    "the end of another pool's facts is copied": Redirected(
        ALL_BUT_WATCHERS,
        FACTS,
        (last(S.fact(synced_key(EMPTY_POOL))),),
        (S.fact(synced_key(POOL)), S.republished(synced_key(POOL))),
    ),
    "a frame is a request": Redirected(
        ("picker", "reader"),
        snapshot_of("attributes"),
        (last(S.frame(POOL, "evil", 0)),),
        (f"{API}.MSG.DELETE.KV_endpoints", f"{API}.CREATE.mine"),
    ),
    "a frame is a fact": Redirected(
        ("picker", "reader"), snapshot_of("attributes"), (last(S.frame(POOL, "evil", 1)),), (S.republished(GONE),)
    ),
    "a frame is acknowledged": Redirected(("collector",), S.frame(POOL, "c1", 0), (b"junk",), WRITES),
    "the API answers": Redirected(("reader",), f"{API}.INFO.KV_endpoints", (b"",), WRITES),
    "watchers answer queries": Redirected(("reader",), S.query(POOL, "watcher"), (encode(Query(kind="x")),), WRITES),
    "watchers answer actions": Redirected((OPERATOR,), S.actions(POOL), (encode(DRAIN),), WRITES),
}


@pytest.mark.parametrize("attack", REDIRECTED.values(), ids=REDIRECTED)
async def test_answers_that_are_sent_elsewhere_reach_nobody(tmp_path: Path, attack: Redirected) -> None:
    """NATS checks the subject of a request, not the one that the request names for its answer. What its sender wants
    there goes on while facts change, a picker starts, and the leader renews its lease."""
    accounts = audited(installation(S))
    async with secured(tmp_path, accounts) as server, logged_in(server) as logins, AsyncExitStack() as stack:

        async def bus(tier: str) -> Bus:
            made = Bus(server.url, name=tier, user=tier, password=PASSWORDS[tier], inbox=S.inbox(tier))
            await stack.enter_async_context(made)
            await made.wait_connected(TIMEOUT)
            return made

        watcher = await bus("watcher")
        audit: list[Msg] = []
        auditor = await stack.enter_async_context(Bus(server.url, name="auditor", user="auditor", password="auditor1"))
        await auditor.subscribe(">", audit.append)
        await auditor.wait_connected(TIMEOUT)
        bucket = FrameBucket(watcher, S)
        await bucket.start()
        stack.push_async_callback(bucket.close)
        lease = Lease(watcher, S, "watcher", "w1")
        stack.push_async_callback(lease.release)
        await lease.acquire()
        responder = Responder(watcher, S, [POOL], "watcher", "w1", {})
        await responder.start()
        stack.push_async_callback(responder.close)
        actions = Actions(watcher, S, "w1", lambda: {POOL: {}}, never, leads=lambda: lease.held)
        await actions.start()
        acting = asyncio.create_task(actions.run())
        stack.push_async_callback(cancel, acting)

        owner = FactPublisher(watcher, S, "w1", check_interval=0.2)
        _, view = await stack.enter_async_context(reading(await bus("picker")))
        await stack.enter_async_context(leading(owner))
        owner.update(endpoints("a", "b", "gone"), [POOL, EMPTY_POOL])
        await eventually(lambda: view.facts == endpoints("a", "b", "gone"), lambda: owner)
        owner.update(endpoints("a", "b"), [POOL, EMPTY_POOL])
        await eventually(lambda: view.facts == endpoints("a", "b") and owner.published, lambda: owner)
        collector = await bus("collector")
        forged = FactEnvelope(epoch=owner.epoch, sequence=2**40, fact=Raw(encode_fact(endpoints("gone")[GONE])))
        for part, frame in enumerate((b'{"seq":2,"name":"mine"}', encode(forged))):
            await eventually(partial(acknowledged, collector, S.frame(POOL, "evil", part), frame), lambda: bucket)
        view.clear()

        requests = [
            f"PUB {attack.subject} {target} {len(body)}\r\n".encode() + body
            for target in attack.targets
            for body in attack.bodies
        ]

        async def redirect() -> None:
            while True:
                for tier in attack.logins:
                    assert await logins[tier].is_allowed(b"\r\n".join(requests))
                await asyncio.sleep(0.005)

        attacking = asyncio.create_task(redirect())
        stack.push_async_callback(cancel, attacking)
        late, late_view = await stack.enter_async_context(reading(await bus("picker")))
        await eventually(lambda: bool(late_view.events), lambda: late)
        assert late_view.events[0] == Reset(endpoints("a", "b"))
        owner.update(after := endpoints("a", "b", "c"), [POOL, EMPTY_POOL])
        await eventually(lambda: view.facts == late_view.facts == after and owner.published, lambda: owner)
        await asyncio.sleep(0.6)  # a renewal of the lease, and comparisons with the bucket
        assert not attacking.done()
        assert [event for event in [*view.events, *late_view.events[1:]] if not isinstance(event, Upsert)] == []
        assert view.seen == late_view.seen == set(after)
        assert (owner.establishments, owner.failures, owner.repaired) == (1, 0, 0)
        # What watchers write, they want acknowledged; answers that are sent there name no inbox.
        own = f"{S.inbox('watcher')}."
        odd = [
            message
            for message in audit
            if message.subject in attack.targets and is_written(message) and own not in message.reply
        ]
        assert odd == []


def audited(accounts: str) -> str:
    """With a login that hears everything in the watchers' account."""
    return accounts.replace("users: [{", "users: [{ user: auditor, password: auditor1 }, {", 1)


def is_written(message: Msg) -> bool:
    """Whether the bucket hasn't republished it."""
    return not message.subject.startswith(S.republished(""))


async def acknowledged(bus: Bus, subject: str, payload: bytes) -> bool:
    try:
        await jetstream.put(bus, subject, payload, timeout=1.0)
    except BusError:
        return False
    return True


async def never(_endpoint: Endpoint, _drain: bool) -> None:
    raise AssertionError("there is no such endpoint")


async def test_accounts_pass_everything_between_the_servers_of_a_cluster(tmp_path: Path) -> None:
    """Each tier is connected to another server."""
    async with secured_cluster(tmp_path) as servers, AsyncExitStack() as stack:

        async def bus(tier: str, server: NatsServer) -> Bus:
            made = Bus(server.url, name=tier, user=tier, password=PASSWORDS[tier], inbox=S.inbox(tier))
            await stack.enter_async_context(made)
            await made.wait_connected(TIMEOUT)
            return made

        watcher, collector, picker = [
            await bus(tier, server) for tier, server in zip(("watcher", "collector", "picker"), servers, strict=True)
        ]
        reader = await bus("reader", servers[0])
        owner = FactPublisher(watcher, S, "w1", replicas=3)
        views = [await stack.enter_async_context(reading(connection)) for connection in (collector, picker, reader)]
        await stack.enter_async_context(leading(owner))
        bucket = FrameBucket(watcher, S)
        await bucket.start()
        stack.push_async_callback(bucket.close)
        wanted = endpoints("a", "b")
        owner.update(wanted, [POOL])
        await eventually(lambda: all(view.facts == wanted for _, view in views), lambda: (owner, views))
        owner.update(wanted := endpoints("b", "c"), [POOL])
        await eventually(lambda: all(view.facts == wanted for _, view in views), lambda: (owner, views))

        heard: dict[str, list[bytes]] = {"picker": [], "reader": []}
        await picker.subscribe(S.frames(POOL), lambda message: heard["picker"].append(message.data))
        await reader.subscribe(S.frames(POOL), lambda message: heard["reader"].append(message.data))
        await reader.subscribe(S.loads(POOL), lambda message: heard["reader"].append(message.data))
        responder = Responder(picker, S, [POOL], "picker", "p1", {StatusQuery: lambda _: iter([b"x" * 2**17] * 2)})
        await responder.start()
        stack.push_async_callback(responder.close)

        async def all_is_passed() -> bool:
            await picker.publish(S.load(POOL, "p1"), b"load")
            if not await acknowledged(collector, S.frame(POOL, "c1", 0), b"frame"):
                return False
            stored = await jetstream.snapshot(picker, S.attributes_bucket, S.frames(POOL))
            answers = await query_members(reader, S, POOL, "picker", StatusQuery(), expected=["p1"])
            return (
                [message.data for message in stored] == [b"frame"]
                and [len(answer.content) for answer in answers] == [2**18]
                and set(heard["picker"]) == {b"frame"}
                and set(heard["reader"]) == {b"frame", b"load"}
            )

        await eventually(all_is_passed, lambda: (heard, bucket), step=0.1)
        assert [line for server in servers for line in violations(server)] == []


async def test_a_process_says_what_its_login_isnt_permitted(tmp_path: Path) -> None:
    """Two inboxes, a subscription and a message of other tiers."""
    async with (
        secured(tmp_path) as server,
        Bus(server.url, name="wrong", user="collector", password=PASSWORDS["collector"]) as bus,
    ):
        await bus.subscribe(S.loads(POOL), lambda _: None)
        await bus.wait_connected(TIMEOUT)
        assert await bus.publish(S.load(POOL, "p1"), b"junk")
        await eventually(lambda: bus.malformed.refused.total == 4, lambda: bus.malformed)
        note = bus.malformed.note() or ""
        assert "4 refused messages, the last" in note
        assert f'permissions violation for publish to "{S.load(POOL, "p1")}"' in note
        assert bus.connected
