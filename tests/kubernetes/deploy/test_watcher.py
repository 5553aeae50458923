"""What the watcher is told to do is what its flags mean."""

from typing import Any

import pytest

from services.watcher.kubernetes.config_map import ConfigMapKey
from services.watcher.kubernetes.provider import pool_options
from services.watcher.resources import PoolId
from services.watcher.settings import WatcherSettings
from shared.model import Pool
from shared.service.settings import describe, parse
from tests.kubernetes.deploy.render import NAMESPACE, Objects, Renderer, container

OURS = PoolId(NAMESPACE, "model-servers")
CONFIGURATION = ConfigMapKey(NAMESPACE, "pointsman-config")


def told(objects: Objects) -> WatcherSettings:
    """The settings of the process, with the variables that the kubelet fills in."""
    command = container(objects["Deployment", "pointsman-watcher"])
    environment = {variable["name"]: NAMESPACE for variable in command["env"]}
    assert environment.keys() <= {row[1] for row in describe(WatcherSettings)}
    tier, *words = command["args"]
    assert tier == "watcher"
    for name, value in environment.items():
        words = [word.replace(f"$({name})", value) for word in words]
    settings = parse(WatcherSettings, words, environment, "watcher")
    assert settings.kubernetes
    assert settings.nats_url == ("nats://pointsman-nats:4222",)
    return settings


def test_it_serves_the_pool_with_the_configuration_beside_it(base: Objects) -> None:
    settings = told(base)
    (pool,) = pool_options(settings)
    assert pool == OURS
    assert pool_options(settings)[pool].config_map == CONFIGURATION


def test_it_serves_further_pools_with_the_same(renderer: Renderer) -> None:
    found = pool_options(told(renderer.chart({"watcher": {"pools": ["models/llama"]}})))
    assert found.keys() == {OURS, PoolId("models", "llama")}
    assert {item.config_map for item in found.values()} == {CONFIGURATION}
    [_, other] = pool_options(told(renderer.chart({"watcher": {"pools": ["models/llama=own"]}}))).values()
    assert (other.pool, other.config_map) == (PoolId("models", "llama"), ConfigMapKey("models", "own"))


def test_it_follows_the_slices_of_the_service(renderer: Renderer) -> None:
    assert pool_options(told(renderer.base("endpoint-slices")))[OURS].slices_of == "model-servers"


@pytest.mark.parametrize(
    ("pool", "selector", "ports"),
    [
        ({}, {"app": "model-server"}, (8000,)),
        (
            {"selector": {"app": None, "model": "llama", "tier": "gpu"}, "targetPorts": [8000, 8001]},
            {"model": "llama", "tier": "gpu"},
            (8000, 8001),
        ),
    ],
)
def test_without_an_inference_pool_it_selects_by_the_charts(
    renderer: Renderer, pool: dict[str, Any], selector: dict[str, str], ports: tuple[int, ...]
) -> None:
    found = pool_options(told(renderer.chart({"pool": {"standalone": True, **pool}})))
    assert found[OURS].stand_alone == Pool(name=OURS.name, namespace=NAMESPACE, selector=selector, target_ports=ports)
