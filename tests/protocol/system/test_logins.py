"""The whole system with a login for each tier, as it is deployed: requests are served, and NATS refuses nothing."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
from msgspec import structs

from pointsman.local.stack import LocalStack
from shared.bus.connection import Bus
from shared.bus.subjects import Subjects, pool_token
from shared.service.survey import survey
from tests.protocol.bus.logins import PASSWORDS, secured, violations
from tests.protocol.system.conftest import SIMULATORS, logs, nothing_in_flight, plan
from tests.waiting import TIMEOUT, eventually

S = Subjects()
CHAT = {"model": "base", "messages": [{"role": "user", "content": "Hello " * 200}], "max_tokens": 4}
REFUSED = re.compile(r"^pointsman_bus_refused_messages_total (\S+)$", re.MULTILINE)


async def test_every_tier_runs_with_its_own_login_and_no_request_is_refused(tmp_path: Path) -> None:
    async with secured(tmp_path / "nats") as server:
        logins = {
            tier: {"nats-url": server.url, "nats-user": tier, "nats-password": PASSWORDS[tier]}
            for tier in ("watcher", "collector", "picker")
        }
        made = plan("ours", tmp_path, SIMULATORS[:2])
        flags = {tier: {**made.flags.get(tier, {}), **login} for tier, login in logins.items()}
        made = structs.replace(made, flags=flags, watchers=2)
        async with LocalStack(made, tmp_path) as stack:
            async with httpx.AsyncClient(base_url=stack.url, timeout=30, trust_env=False) as client:
                for _ in range(6):
                    answer = await client.post("/v1/chat/completions", json=CHAT)
                    assert answer.status_code == 200, answer.text
            await nothing_in_flight(stack.pickers)

            async def everything_is_shared() -> bool:
                states = [await picker.state() for picker in stack.pickers]
                return all(
                    len(state["peers"]) == 1
                    and len(state["prefixes"]["origins"]) == 1
                    and all(endpoint["attributes"] for endpoint in state["endpoints"])
                    for state in states
                )

            await eventually(everything_is_shared, lambda: logs(tmp_path), step=0.05)
            for process in (*stack.watchers, *stack.collectors, *stack.pickers):
                assert REFUSED.findall((await process.get("/metrics")).text) == ["0.0"], process
            login: dict[str, Any] = {"user": "reader", "password": PASSWORDS["reader"], "inbox": S.inbox("reader")}
            async with Bus(server.url, name="status", **login) as reader:
                await reader.wait_connected(TIMEOUT)

                async def all_answer() -> bool:
                    found = await survey(reader, S, pool_token("default", "default"))
                    counts = Counter(member.tier for member in found.members)
                    return bool(found.leader) and counts == {"watcher": 2, "collector": 2, "picker": 2}

                await eventually(all_answer, "the status of all members")
        assert violations(server) == []
