"""What docs/deploy-compose.md promises of docker-compose.yml, under constant load through Envoy."""

import json
import os
from collections import Counter

import yaml

from pointsman.docs import RULES
from tests.deploy.compose import PATIENCE, PROJECT, Compose
from tests.deploy.images import OURS, PROMETHEUS, UPGRADE
from tests.deploy.results import Result
from tests.deploy.scenario import Scenarios, first_answers, nobody_listens, response_broke_off
from tests.faults.system.load import Load
from tests.waiting import eventually

CONFIGURATION = "deploy/compose/pointsman.yaml"
ENDPOINTS = "deploy/compose/endpoints.yaml"
WATCHER = 65532
"""The user in the container."""

scenario: Scenarios[Compose] = Scenarios()


async def everything(compose: Compose, only: str) -> list[Result]:
    """A cold start, and all scenarios, or those whose names match `only`."""

    async def start() -> None:
        await compose.up()
        await compose.answers()

    return [await first_answers(start, compose, compose.settled), *await scenario.play(compose, only)]


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


@scenario("pickers replaced in two steps")
async def pickers_replaced(compose: Compose, load: Load) -> None:
    before = set(await compose.containers("picker"))
    await compose.up("--no-recreate", picker=4)
    await compose.settled()
    oldest = (await compose.containers("picker"))[-2:]  # the engine lists the newest first
    assert set(oldest) == before
    await compose.engine("stop", *oldest)
    await compose.engine("rm", *oldest)
    await compose.up(picker=2)
    assert not before & set(await compose.containers("picker"))
    await compose.settled()


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


@scenario("a model server killed", response_broke_off)
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


@scenario("a model server drained from the console, and taken back")
async def drained(compose: Compose, load: Load) -> str:
    watched = compose.directory / ENDPOINTS
    for path in (watched.parent, watched):
        os.chown(path, WATCHER, WATCHER)
    compose.environment, compose.token = {"CONSOLE_TOKEN": "secret"}, "secret"
    compose.files = ("docker-compose.yml", "deploy/compose/actions.yml")
    try:
        await compose.up()
        await compose.settled()
        await compose.drains("default/vllm-1")
        await load.goes_on()
    finally:
        compose.environment, compose.token, compose.files = {}, "", ()
    await compose.up()
    await compose.settled()
    return "with `deploy/compose/actions.yml` and the token"


@scenario("the configuration changed, to a bad one and back")
async def configuration(compose: Compose, load: Load) -> str:
    before = compose.read(CONFIGURATION)
    compose.write(CONFIGURATION, before.replace("maxRequestGap: 32", "maxRequestGap: 24"))
    await load.goes_on()
    compose.write(CONFIGURATION, before.replace("token-load-scorer", "no-such-scorer"))

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


@scenario("Envoy created again", nobody_listens)
async def envoy_again(compose: Compose, load: Load) -> str:
    await compose.recreate("envoy")
    await compose.answers()
    await compose.settled()
    return "one Envoy is one entrance: while it is away, nobody listens"


@scenario("with the profile `traces`, switched on and off")
async def traced(compose: Compose, load: Load) -> str:
    compose.profiles, compose.environment = ("traces",), {"POINTSMAN_TRACING": "true"}
    try:
        await compose.up()
        await compose.settled()
        (container,) = await compose.containers("jaeger")
        url = f"http://{await compose.address(container)}:16686/api/traces?service=pointsman-picker&limit=200"

        async def exported() -> bool:
            traces = json.loads(await compose.get(url))["data"]
            names = {span["operationName"] for trace in traces for span in trace["spans"]}
            assert names == {"gateway.request"}, names
            tags = [tag for trace in traces for process in trace["processes"].values() for tag in process["tags"]]
            pickers = {tag["value"] for tag in tags if tag["key"] == "service.instance.id"}
            assert len(pickers) == 2, pickers
            return True

        await eventually(exported, "both pickers export spans", timeout=PATIENCE, step=0.5)
        await compose("rm", "--stop", "--force", "jaeger")
    finally:
        compose.profiles, compose.environment = (), {}
    await compose.up()
    await compose.settled()
    return "both pickers' spans arrive"


@scenario("with Prometheus, of the profile `monitoring`")
async def monitored(compose: Compose, load: Load) -> str:
    if not await compose.engine.has(PROMETHEUS):
        return "not played: its image can't be had here"
    await compose("--profile=monitoring", "up", "--detach", "--no-build", "--no-deps", "prometheus")
    (container,) = await compose.containers("prometheus")
    api = f"http://{await compose.address(container)}:9090/api/v1"

    async def scraped() -> bool:
        targets = json.loads(await compose.get(f"{api}/targets"))["data"]["activeTargets"]
        up = Counter(one["labels"].get("tier", one["labels"]["job"]) for one in targets if one["health"] == "up")
        assert up == {"watcher": 1, "collector": 2, "picker": 2, "console": 1, "envoy": 1}, targets
        found = json.loads(await compose.get(f"{api}/query?query=sum(pointsman_picker_decisions_total)"))
        assert float(found["data"]["result"][0]["value"][1]) > 0, found
        return True

    await eventually(scraped, "everything is scraped", timeout=PATIENCE, step=0.5)
    groups = json.loads(await compose.get(f"{api}/rules"))["data"]["groups"]
    rules = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] != "err"]
    [ours] = yaml.safe_load(RULES.read_text())["groups"]
    assert rules == [rule["alert"] for rule in ours["rules"]], rules
    await compose("rm", "--stop", "--force", "prometheus")
    return f"all seven processes are scraped, all {len(rules)} alerts are loaded"
