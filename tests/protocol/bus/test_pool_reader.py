"""An observer of the bus, with no more permissions than a reader has."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

from shared.bus.candidacy import Candidacy
from shared.bus.codec import encode
from shared.bus.columns import endpoint_hash, pack_counts, pack_hashes
from shared.bus.connection import Bus
from shared.bus.lease import Lease
from shared.bus.membership import Membership
from shared.bus.messages import Load
from shared.bus.publisher import FactPublisher
from shared.bus.subjects import WATCHER_LEASE
from shared.pool_view.reader import PoolReader
from tests.protocol.bus.conftest import POOL, SUBJECTS, endpoints, leading
from tests.protocol.bus.logins import PASSWORDS, secured, violations
from tests.waiting import TIMEOUT, eventually


def load(sender: str, requests: int, run: int = 1, sequence: int = 1) -> bytes:
    return encode(
        Load(
            sender=sender,
            sent=asyncio.get_running_loop().time(),
            sequence=sequence,
            run=run,
            ids=pack_hashes([endpoint_hash("default/a")]),
            requests=pack_counts([requests]),
            tokens=pack_counts([10 * requests]),
        )
    )


async def test_a_reader_sees_the_pool_and_who_leads_and_follows_every_change(tmp_path: Path) -> None:
    async with secured(tmp_path) as server, AsyncExitStack() as stack:

        async def login(tier: str) -> Bus:
            inbox = SUBJECTS.inbox(tier)
            bus = Bus(server.url, name=tier, user=tier, password=PASSWORDS[tier], inbox=inbox)
            await stack.enter_async_context(bus)
            await bus.wait_connected(TIMEOUT)
            return bus

        watchers, collectors, pickers = [await login(tier) for tier in ("watcher", "collector", "picker")]
        reader = await stack.enter_async_context(PoolReader(await login("reader"), SUBJECTS, POOL))
        publisher = FactPublisher(watchers, SUBJECTS, "w1/aa")
        publisher.update(endpoints("a", "b"), [POOL])
        await stack.enter_async_context(leading(publisher))
        await eventually(lambda: [row.name for row in reader.rows()] == ["a", "b"], reader.readiness)

        leases = [Lease(watchers, SUBJECTS, WATCHER_LEASE, owner) for owner in ("w1/aa", "w2/bb")]
        for lease in leases:
            candidacy = Candidacy(watchers, SUBJECTS, WATCHER_LEASE, lease.owner, lambda: (1,))
            await candidacy.start()
            stack.push_async_callback(candidacy.close)
            stack.push_async_callback(lease.release)
        member = Membership(collectors, SUBJECTS, POOL, "collector", "c1", lambda ids: None)
        await member.start()
        stack.push_async_callback(member.close)
        for lease in leases:
            await lease.acquire()
            leads = [("w1", lease is leases[0]), ("w2", lease is leases[1])]
            await eventually(lambda: [(row.id, row.leader) for row in reader.members()[:2]] == leads)  # noqa: B023
            await lease.release()
        assert [row.id for row in reader.members()] == ["w1", "w2", "c1"]

        version, sequence = reader.version, 0

        async def both_count() -> bool:
            """After what they say, and what others say in their names: another run, and under another's subject."""
            nonlocal sequence
            sequence += 1
            for subject, problem in (
                ("p1", load("p1", 3, sequence=sequence)),
                ("p1", load("p1", 90, run=2, sequence=sequence)),
                ("p2", load("p1", 90, sequence=sequence)),
                ("p3", load("p3", 1, sequence=sequence)),
            ):
                await pickers.publish(SUBJECTS.load(POOL, subject), problem)
            return [row.in_flight for row in reader.rows()] == [4, 0]

        await eventually(both_count, step=0.1)
        assert reader.version != version
        await eventually(lambda: [row.in_flight for row in reader.rows()] == [0, 0])  # they are silent
        assert reader.state().reason == ""
        assert violations(server) == []
