"""Scenarios: something happens to a running system under constant load through Envoy, and failed requests count."""

import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

import aiohttp

from tests.deploy.results import Result
from tests.faults.system.load import Failure, Load

WORKERS = 16
AFTER = 60
"""Requests after the last action."""
ATTRIBUTE = "WaitingQueueSize/core-metrics-extractor"


class System(Protocol):
    """What is deployed."""

    @property
    def url(self) -> str:
        """Envoy's, for clients."""

    async def mend(self) -> None:
        """Bring it back to what it was before a scenario that broke off."""


S = TypeVar("S", bound=System)
Action = Callable[[S, Load], Awaitable[str | None]]
"""What happens while the load goes on; returns a note for the table."""
Excuse = Callable[[Failure], bool]
"""Whether a failure is none of ours."""


@dataclass
class Scenarios(Generic[S]):
    """By name, in the order in which they are played."""

    of: dict[str, tuple[Action[S], Excuse | None]] = field(default_factory=dict)

    def __call__(self, name: str, excuse: Excuse | None = None) -> Callable[[Action[S]], Action[S]]:
        def register(action: Action[S]) -> Action[S]:
            self.of[name] = (action, excuse)
            return action

        return register

    async def play(self, system: S, only: str = "") -> list[Result]:
        """All whose names match the regular expression `only`. One that fails is played once more."""
        results = []
        for name in self.of:
            if not re.search(only, name):
                continue
            result = await self._once(system, name)
            if not result.passed:
                print(f"  once more: {result}", flush=True)
                await system.mend()
                again = await self._once(system, name)
                result = again if again.passed else result
            said = f"{result.requests} requests, {result.failed + result.excused} failed, {result.seconds:.0f} s"
            print(f"{'ok    ' if result.passed else 'FAILED'} {name}: {said}; {result.note}", flush=True)
            results.append(result)
            if result.error:
                await system.mend()
        return results

    async def _once(self, system: S, name: str) -> Result:
        """Load, the action, more load."""
        action, excuse = self.of[name]
        note: str | None = ""
        error = ""
        async with Load(system.url, workers=WORKERS) as load:
            await load.goes_on()
            began = time.monotonic()
            try:
                note = await action(system, load)
                await load.goes_on(AFTER)
            except Exception as raised:  # noqa: BLE001 -- the others are still worth playing
                error = f"{type(raised).__name__}: {raised}"
            seconds = time.monotonic() - began
        excused = [one for one in load.failures if excuse is not None and excuse(one)]
        failed = [one for one in load.failures if one not in excused]
        for one in failed[:5]:
            print(f"  {one.request_id}: {one.started - began:.2f} to {one.ended - began:.2f} s: {one.what}", flush=True)
        return Result(
            scenario=name,
            requests=len(load.request_ids),
            failed=len(failed),
            excused=len(excused),
            seconds=seconds,
            note=note or "",
            error=error,
        )


def response_broke_off(failure: Failure) -> bool:
    """The model server had begun the response."""
    return failure.what.startswith(("ClientPayloadError", "ValueError: the stream broke off", "ValueError: status 502"))


def nobody_listens(failure: Failure) -> bool:
    """The connection to Envoy was refused or broke."""
    return failure.what.startswith(("ClientConnectorError", "Server", "ClientOSError", "ClientPayloadError"))


async def first_answers(
    start: Callable[[], Awaitable[None]], system: System, settled: Callable[[], Awaitable[None]]
) -> Result:
    """Start everything at once, from nothing, until it answers: from then on no request fails."""
    began = time.monotonic()
    await start()
    seconds = time.monotonic() - began
    async with Load(system.url, workers=WORKERS) as load:
        await settled()
        await load.goes_on(AFTER)
    return Result(
        scenario="cold start of everything at once",
        requests=len(load.request_ids),
        failed=len(load.failures),
        seconds=time.monotonic() - began,
        note=f"the first answer after {seconds:.1f} s",
    )


async def answers(session: aiohttp.ClientSession, url: str) -> bool:
    """Fails unless a request is answered."""
    try:
        body = {"model": "simulated", "prompt": "Ready?", "max_tokens": 1}
        async with session.post(f"{url}/v1/completions", json=body) as response:
            assert response.status == 200, response.status
    except (aiohttp.ClientError, TimeoutError) as error:
        raise AssertionError(repr(error)) from error
    return True


def assert_settled(
    pickers: Sequence[Mapping[str, Any]], collectors: Sequence[Mapping[str, Any]], *, endpoints: int
) -> None:
    """By their `/debug/state`, pickers know each other and all endpoints with fresh metrics. Raises AssertionError."""
    for state in pickers:
        assert len(state["peers"]) == len(pickers) - 1, f"{state['id']} knows {len(state['peers'])} pickers"
        known = {one["id"]: one["attributes"].get(ATTRIBUTE) for one in state["endpoints"]}
        assert len(known) == endpoints, f"{state['id']} knows {sorted(known)}"
        old = {name: value for name, value in known.items() if value is None or value["age"] > 1}
        assert not old, f"{state['id']}: {old}"
    assigned = sum(len(one["endpoints"]["assigned"]) for one in collectors)
    assert assigned == endpoints, f"{assigned} endpoints are assigned"
