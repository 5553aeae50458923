"""What docs/deploy-compose.md promises of docker-compose.yml, under constant load through Envoy."""

import time
from collections.abc import Awaitable, Callable

import yaml

from tests.deploy.compose import PROJECT, Compose
from tests.deploy.engine import Engine
from tests.deploy.images import OURS, UPGRADE
from tests.deploy.results import Result
from tests.faults.system.load import Failure, Load
from tests.waiting import eventually

WORKERS = 16
AFTER = 60
"""Requests after the last action."""
CONFIGURATION = "deploy/compose/pointsman.yaml"
ENDPOINTS = "deploy/compose/endpoints.yaml"

Action = Callable[[Compose, Load], Awaitable[str | None]]
"""What happens while the load goes on; returns a note for the table."""
Excuse = Callable[[Failure, float], bool]
"""Whether a failure is none of ours: it, and when the action began."""
SCENARIOS: dict[str, tuple[Action, Excuse | None]] = {}


def scenario(name: str, excuse: Excuse | None = None) -> Callable[[Action], Action]:
    def register(action: Action) -> Action:
        SCENARIOS[name] = (action, excuse)
        return action

    return register


def _in_progress(failure: Failure, began: float) -> bool:
    return failure.started < began


def _nobody_listens(failure: Failure, _: float) -> bool:
    return failure.what.startswith(("ClientConnectorError", "ServerDisconnectedError", "ClientOSError", "ClientPayloadError"))


async def play(compose: Compose, name: str) -> Result:
    """One scenario: load, the action, more load."""
    action, excuse = SCENARIOS[name]
    note: str | None = ""
    error = ""
    async with Load(compose.url, workers=WORKERS) as load:
        await load.goes_on()
        began = time.monotonic()
        try:
            note = await action(compose, load)
            await load.goes_on(AFTER)
        except Exception as raised:  # noqa: BLE001 -- the others are still worth playing
            error = f"{type(raised).__name__}: {raised}"
        seconds = time.monotonic() - began
    excused = [one for one in load.failures if excuse is not None and excuse(one, began)]
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


async def cold_start(compose: Compose) -> Result:
    """Everything at once, from nothing: no request fails after the first that is answered."""
    began = time.monotonic()
    await compose.up()
    await compose.answers()
    seconds = time.monotonic() - began
    async with Load(compose.url, workers=WORKERS) as load:
        await compose.settled()
        await load.goes_on(AFTER)
    return Result(
        scenario="cold start of everything at once",
        requests=len(load.request_ids),
        failed=len(load.failures),
        seconds=time.monotonic() - began,
        note=f"the first answer {seconds:.1f} s after `docker-compose up`",
    )


@scenario("pickers 2 → 4 → 1 → 2, collectors 2 → 3 → 1 → 2")
async def scales(compose: Compose, load: Load) -> None:
    for pickers, collectors in ((4, 3), (1, 1), (2, 2)):
        await compose.up(picker=pickers, collector=collectors)
        await compose.settled()
        await load.goes_on()


@scenario("pickers created again")
async def pickers_again(compose: Compose, load: Load) -> str:
    await compose.recreate("picker")
    await compose.settled()
    return "all at a time: meanwhile Envoy routes round robin"


@scenario("collectors created again")
async def collectors_again(compose: Compose, load: Load) -> None:
    await compose.recreate("collector")
    await compose.settled()


@scenario("watcher created again")
async def watcher_again(compose: Compose, load: Load) -> None:
    await compose.recreate("watcher")
    await compose.settled()


@scenario("model servers created again, one after the other")
async def model_servers_again(compose: Compose, load: Load) -> str:
    for number in (1, 2, 3):
        await compose.recreate(f"simulator-{number}")
        await compose.settled()
        await load.goes_on()
    return "SIGTERM: they finish what they have begun"


@scenario("NATS restarted, with its volume")
async def nats_again(compose: Compose, load: Load) -> None:
    await compose.recreate("nats")
    await compose.settled()


@scenario("NATS restarted, without its volume")
async def nats_wiped(compose: Compose, load: Load) -> None:
    await compose("rm", "--stop", "--force", "nats")
    await compose.engine("volume", "rm", f"{PROJECT}_nats")
    await load.goes_on()
    await compose.up("--no-deps", "nats")
    await compose.settled()


@scenario("a picker, a collector and the watcher killed, one after the other")
async def killed(compose: Compose, load: Load) -> None:
    for service in ("picker", "collector", "watcher"):
        await compose.kill((await compose.containers(service))[0])
        await load.goes_on()
        await compose.settled()


@scenario("a model server killed", _in_progress)
async def model_server_killed(compose: Compose, load: Load) -> str:
    await compose.kill((await compose.containers("simulator-1"))[0])
    await compose.settled()
    return "only responses in progress may fail"


@scenario("a model server leaves the endpoints file and stops, and returns")
async def model_server_leaves(compose: Compose, load: Load) -> None:
    before = compose.read(ENDPOINTS)
    document = yaml.safe_load(before)
    document["endpoints"] = document["endpoints"][:-1]
    compose.write(ENDPOINTS, yaml.safe_dump(document))
    await compose.settled(endpoints=2)
    await compose("stop", "simulator-3")
    await load.goes_on()
    await compose("start", "simulator-3")
    compose.write(ENDPOINTS, before)
    await compose.settled()


@scenario("the configuration changed, to a bad one and back")
async def configuration(compose: Compose, load: Load) -> str:
    before = compose.read(CONFIGURATION)
    compose.write(CONFIGURATION, before.replace("weight: 2", "weight: 4"))
    await load.goes_on()
    compose.write(CONFIGURATION, before.replace("queue-scorer", "no-such-scorer"))

    async def told() -> bool:
        notes = await compose.notes()
        assert any("no-such-scorer" in note for note in notes.values()), notes
        return True

    await eventually(told, "the watcher tells")
    await load.goes_on()
    compose.write(CONFIGURATION, before)

    async def mended() -> bool:
        return not await compose.notes()

    await eventually(mended, "the note ends")
    return "the bad one changes nothing; the watcher's `/readyz` names the error"


@scenario("another image for watcher, collectors and pickers at once")
async def upgrade(compose: Compose, load: Load) -> None:
    before = compose.read("docker-compose.yml")
    services = ("watcher", "collector", "picker")
    document = yaml.safe_load(before)
    for service in services:
        document["services"][service]["image"] = UPGRADE
    try:
        compose.write("docker-compose.yml", yaml.safe_dump(document))
        await compose.up()
        for service in services:
            for container in await compose.containers(service):
                assert await compose.engine.inspect(container, "{{.Config.Image}}") == UPGRADE
        await compose.settled()
    finally:
        compose.write("docker-compose.yml", before)
    await compose.up()
    (container,) = await compose.containers("watcher")
    assert await compose.engine.inspect(container, "{{.Config.Image}}") == OURS
    await compose.settled()


@scenario("Envoy created again", _nobody_listens)
async def envoy_again(compose: Compose, load: Load) -> str:
    await compose.recreate("envoy")
    await compose.answers()
    await compose.settled()
    return "one Envoy is one entrance: while it is away, nobody listens"


async def everything(engine: Engine, compose: Compose, only: str) -> list[Result]:
    """All scenarios, or those with `only` in their name. One that fails is played once more."""
    results = [await cold_start(compose)]
    for name in SCENARIOS:
        if only and only not in name:
            continue
        result = await play(compose, name)
        if not result.passed:
            print(f"  once more: {result}", flush=True)
            await compose.up()
            await compose.settled()
            again = await play(compose, name)
            result = again if again.passed else result
        print(f"{'ok    ' if result.passed else 'FAILED'} {name}: {result.requests} requests", flush=True)
        results.append(result)
    return results
