"""deploy/nats/accounts.conf on the real nats-server: who may publish and hear what."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from shared.bus.accounts import OPERATOR, installation, permissions
from shared.bus.connection import Bus
from shared.bus.publisher import FactPublisher
from shared.bus.reply_subjects import SERVICE_REPLIES
from shared.bus.subjects import EPOCH, TIERS, Subjects, pool_token, synced_key
from tests.nats import NatsServer
from tests.protocol.bus.conftest import POOL, endpoints, leading, reading
from tests.protocol.bus.logins import OPERATOR_PASSWORD, PASSWORDS, secured
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
    S.actions(POOL): NOBODY,
    **{f"{S.inbox(tier)}.x.1": NOBODY for tier in ("watcher", "collector", "reader")},
    f"{S.inbox('picker')}.x.1": frozenset({"picker"}),
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
"""Subject: the tiers that may publish it."""

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
    S.actions(POOL): frozenset({"reader"}),
    **{f"{S.inbox(tier)}.x.*": frozenset({tier}) for tier in TIERS},
    f"{SERVICE_REPLIES}>": NOBODY,
    "_INBOX.>": NOBODY,
    ">": NOBODY,
}
"""Subject: the tiers that may hear it."""


class Login:
    """A connection of a tier, in NATS's protocol by hand: what was refused is known before the answer to a PING."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def is_allowed(self, command: str) -> bool:
        """Whether the server takes a command."""
        self._writer.write(f"{command}\r\nPING\r\n".encode())
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
async def logged_in(server: NatsServer, passwords: Mapping[str, str] = PASSWORDS) -> AsyncIterator[Mapping[str, Login]]:
    made = {}
    async with AsyncExitStack() as stack:
        for tier, password in passwords.items():
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            stack.callback(writer.close)
            options = {"user": tier, "pass": password, "verbose": False, "headers": True}
            login = made[tier] = Login(reader, writer)
            assert await login.is_allowed(f"CONNECT {json.dumps(options)}")
        yield made


async def test_a_tier_publishes_and_hears_only_what_is_its_own(tmp_path: Path) -> None:
    async with secured(tmp_path) as server, logged_in(server) as logins:
        for subject, tiers in PUBLISH.items():
            assert {tier for tier, login in logins.items() if await login.may_publish(subject)} == tiers, subject
        for subject, tiers in SUBSCRIBE.items():
            assert {tier for tier, login in logins.items() if await login.may_subscribe(subject)} == tiers, subject


async def test_no_tier_may_publish_where_a_message_of_its_own_wants_its_answer(tmp_path: Path) -> None:
    async with secured(tmp_path) as server, logged_in(server) as logins:
        for tier in ("watcher", "collector", "picker"):
            login, own = logins[tier], S.member(POOL, tier, "x")
            assert await login.may_subscribe(S.members(POOL, tier))
            assert await login.is_allowed(f"SUB {S.members(POOL, tier)} 7")
            assert await login.is_allowed(f"PUB {own} anything 4\r\njunk")
            assert not await login.may_publish("anything")


async def test_with_actions_only_operators_ask_for_them_and_only_watchers_act(tmp_path: Path) -> None:
    accounts = installation(S, actions=True)
    everybody = {**PASSWORDS, OPERATOR: OPERATOR_PASSWORD}
    async with secured(tmp_path, accounts) as server, logged_in(server, everybody) as logins:
        actions = S.actions(POOL)
        assert {tier for tier, login in logins.items() if await login.may_publish(actions)} == {OPERATOR}
        hear = {tier for tier, login in logins.items() if await login.may_subscribe(actions)}
        assert hear == {"watcher", "reader", OPERATOR}
        assert await logins[OPERATOR].may_publish(S.query(POOL, "picker"))
        assert not await logins[OPERATOR].may_publish(S.fact(KEY))


def test_every_subject_of_the_bus_is_in_the_table() -> None:
    """A new one needs somebody who may publish it."""
    arguments = {"key": KEY, "pool": POOL, "picker": "p1", "id": "m1", "sender": "c1", "part": 0, "owner": "w1"}
    no_subjects = {"stream", "sender", "republished_key", "inbox"}
    known = {*PUBLISH, *SUBSCRIBE, S.leases, S.lease_events, *_patterns()}
    for name in [name for name in vars(Subjects) if not name.startswith("_") and name not in no_subjects]:
        made = getattr(S, name)
        if callable(made):
            named = made.__code__.co_varnames[1 : made.__code__.co_argcount]
            made = made(**{one: arguments.get(one, "watcher") for one in named})
        assert made in known, f"{name}: {made}"


def _patterns() -> set[str]:
    return {one for may in permissions(S, [POOL]).values() for one in (*may.publish, *may.subscribe)}


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


async def test_answers_that_are_sent_elsewhere_change_nothing(tmp_path: Path) -> None:
    """NATS checks the subject of a request, not the one that the request names for its answer."""
    async with secured(tmp_path) as server, logged_in(server) as logins, AsyncExitStack() as stack:

        async def bus(tier: str) -> Bus:
            made = Bus(server.url, name=tier, user=tier, password=PASSWORDS[tier], inbox=S.inbox(tier))
            return await stack.enter_async_context(made)

        owner = FactPublisher(await bus("watcher"), S, "w1", check_interval=0.2)
        _, view = await stack.enter_async_context(reading(await bus("picker")))
        await stack.enter_async_context(leading(owner))
        owner.update(endpoints("a", "b"), [POOL])
        await eventually(lambda: view.facts == endpoints("a", "b"), lambda: owner)
        key_a, key_b = endpoints("a", "b")
        requests = [json.dumps({"last_by_subj": S.fact(key)}) for key in (key_a, EPOCH, synced_key(POOL), "nothing")]
        targets = [
            *(subject(key) for subject in (S.fact, S.republished) for key in (key_a, key_b, EPOCH, synced_key(POOL))),
            S.lease("watcher"),
        ]
        for tier in ("collector", "picker", "reader"):
            for target in targets:
                for request in requests:
                    asked = f"PUB $JS.API.DIRECT.GET.KV_endpoints {target} {len(request)}\r\n{request}"
                    assert await logins[tier].is_allowed(asked)
        after = endpoints("a", "b", "c")
        owner.update(after, [POOL])
        await eventually(lambda: view.facts == after, lambda: (owner, view.facts))
        assert view.seen == set(after)


async def test_a_process_says_what_its_login_isnt_permitted(tmp_path: Path) -> None:
    """An inbox, a subscription and a message of other tiers."""
    async with (
        secured(tmp_path) as server,
        Bus(server.url, name="wrong", user="collector", password=PASSWORDS["collector"]) as bus,
    ):
        await bus.subscribe(S.loads(POOL), lambda _: None)
        await bus.wait_connected(TIMEOUT)
        assert await bus.publish(S.load(POOL, "p1"), b"junk")
        await eventually(lambda: bus.malformed.refused.total == 3, lambda: bus.malformed)
        note = bus.malformed.note() or ""
        assert "3 refused messages, the last" in note
        assert f'permissions violation for publish to "{S.load(POOL, "p1")}"' in note
        assert bus.connected
