"""What the chart can be told: each value does what its comment says, and a wrong one is refused by name."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from pointsman.chart_page import VALUES
from services.console.settings import ConsoleSettings
from services.picker.settings.picker import PickerSettings
from services.watcher.settings import WatcherSettings
from shared.service.settings import parse
from tests.kubernetes.deploy.render import DEPLOY, Objects, Renderer, RenderError, container, workloads

SCHEMA: dict[str, Any] = json.loads((DEPLOY / "chart/values.schema.json").read_text())


def nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".")):
        value = {part: value}
    found: dict[str, Any] = value
    return found


def arguments(objects: Objects, tier: str) -> list[str]:
    found: list[str] = container(objects["Deployment", f"pointsman-{tier}"])["args"]
    return found


def console(objects: Objects) -> PickerSettings:
    return parse(PickerSettings, arguments(objects, "picker")[1:], {}, "picker")


WRONG: tuple[tuple[str, Any], ...] = (
    ("picer", {}),
    ("picker.replica", 3),
    ("picker.replicas", 0),
    ("picker.replicas", "three"),
    ("picker.autoscaling.cpu", 101),
    ("picker.autoscaling.inflightRequests", 100),
    ("picker.drainTimeout", "5m"),
    ("picker.resources.limit", {"cpu": 1}),
    ("picker.extraArgs", ["log-level=debug"]),
    ("watcher.pools", ["llama"]),
    ("watcher.endpointSlices", True),
    ("watcher.extraRules", [{"apiGroups": [""], "resources": ["secrets"], "verb": ["list"]}]),
    ("pool.targetPorts", []),
    ("pool.targetPorts", [0]),
    ("pool.targetPorts", [70000]),
    ("pool.targetPorts", [8000, 8000]),
    ("pool.targetPorts", list(range(8000, 8009))),
    ("pool.selector", {"app": 5}),
    ("pool.failureMode", "Open"),
    ("pool.appProtocol", "h2c"),
    ("nats.replicas", 2),
    ("nats.url", "http://nats:4222"),
    ("nats.prefix", "two words"),
    ("nats.memoryStore", "256Mi"),
    ("console.hostnames", "console.example"),
    ("console.token", "secret"),
    ("picker.tracing.endpoint", "http://otel-collector"),
    ("networkPolicy.gateways", [{"namespace": "gateways"}]),
    ("networkPolicy.apiServerPorts", []),
    ("serviceMonitor.interval", "15"),
    ("configuration", {"kind": "EndpointPickerConfig"}),
    # Helm takes the default away: templates would go on without the protection or the limit
    ("networkPolicy.enabled", None),
    ("networkPolicy.apiServerPorts", None),
    ("picker.secureServing", None),
    ("picker.drainTimeout", None),
    ("picker.autoscaling.maxReplicas", None),
    ("pool.failureMode", None),
    ("nats.replicas", None),
    ("nats.goMemoryLimit", None),
    ("watcher.resources", None),
    ("console", None),
)
"""Paths of values, and what none of them can be."""


def rounds() -> Iterator[dict[str, Any]]:
    """The wrong values, as many at once as don't stand in each other's way: helm names all that are wrong."""
    left = list(WRONG)
    while left:
        now = dict(left[::-1])
        left = [(path, value) for path, value in left if now.get(path) is not value]
        yield now


@pytest.mark.parametrize("values", list(rounds()), ids=lambda values: f"{len(values)} values")
def test_wrong_values_are_refused_by_name(renderer: Renderer, values: dict[str, Any]) -> None:
    given: dict[str, Any] = {}
    for path, value in values.items():
        merge(given, nested(path, value))
    with pytest.raises(RenderError) as refused:
        renderer.chart(given)
    for path in values:
        *parents, key = path.split(".")
        place = f"- at '{''.join(f'/{parent}' for parent in parents)}"
        assert [line for line in str(refused.value).splitlines() if place in line and key in line], path


def merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def test_a_pool_selects_by_at_least_one_label(renderer: Renderer) -> None:
    """Helm merges mappings: null takes the example's label away, and then one has to come in its place."""
    with pytest.raises(RenderError, match="/pool/selector"):
        renderer.chart({"pool": {"selector": {"app": None}}})
    objects = renderer.chart({"pool": {"selector": {"app": None, "model": "llama"}}})
    assert objects["InferencePool", "model-servers"]["spec"]["selector"] == {"matchLabels": {"model": "llama"}}


def test_the_schema_knows_every_value_and_no_others() -> None:
    def compare(value: Any, schema: dict[str, Any], path: str) -> None:
        assert schema.get("additionalProperties") is False, path
        assert value.keys() == schema["properties"].keys() - {"global"}, path
        if not path.endswith("/resources"):  # nothing but null takes a request or a limit away
            assert set(schema["required"]) == value.keys(), path
        for key, below in schema["properties"].items():
            if below.get("additionalProperties") is False:
                compare(value[key], below, f"{path}/{key}")

    compare(yaml.safe_load(VALUES.read_text()), SCHEMA, "")


def test_a_nats_elsewhere_has_to_be_named(renderer: Renderer) -> None:
    with pytest.raises(RenderError, match=r"nats\.url: required when nats\.enabled is false"):
        renderer.chart({"nats": {"enabled": False}})


NAMED = "--require-named-models"
OPEN = {"failureMode": "FailOpen"}


def variable(**value: Any) -> list[dict[str, Any]]:
    return [{"name": "POINTSMAN_REQUIRE_NAMED_MODELS", **value}]


@pytest.mark.parametrize(
    "picker",
    [
        *({"extraArgs": ["--log-level=debug", f"{NAMED}{value}"]} for value in ("", "=true", "=True", "=1", "=YES")),
        *({"extraEnv": variable(value=value)} for value in ("true", "TRUE", "1", "yes")),
        {"extraEnv": variable(valueFrom={"configMapKeyRef": {"name": "a", "key": "b"}})},
        {"extraArgs": [f"{NAMED}=false", NAMED], "extraEnv": variable(value="false")},
    ],
    ids=str,
)
def test_a_gateway_that_fails_open_doesnt_open_a_closed_pool(renderer: Renderer, picker: dict[str, Any]) -> None:
    with pytest.raises(RenderError, match="FailOpen lets requests pass that no picker has read"):
        renderer.chart({"pool": OPEN, "picker": picker})
    renderer.chart({"picker": picker})


@pytest.mark.parametrize(
    "picker",
    [
        *({"extraArgs": [f"{NAMED}={value}"]} for value in ("false", "No", "0")),
        *({"extraEnv": variable(value=value)} for value in ("false", "NO", "0", "")),
        {"extraArgs": [NAMED, f"{NAMED}=false"], "extraEnv": variable(value="true")},
    ],
    ids=str,
)
def test_a_gateway_may_fail_open_before_another_pool(renderer: Renderer, picker: dict[str, Any]) -> None:
    objects = renderer.chart({"pool": OPEN, "picker": picker})
    environment = {entry["name"]: entry["value"] for entry in picker.get("extraEnv", [])}
    assert parse(PickerSettings, arguments(objects, "picker")[1:], environment, "picker").require_named_models is False


def test_a_nats_elsewhere_takes_the_place_of_ours(renderer: Renderer) -> None:
    nats = {"enabled": False, "url": "tls://bus.example:4222", "prefix": "second", "loginsSecret": "login"}
    objects = renderer.chart({"nats": {**nats, "caSecret": "authority"}})
    assert not [workload for workload in workloads(objects) if workload["kind"] == "StatefulSet"]
    assert not [key for key in objects if "nats" in key[1]]
    command = container(objects["Deployment", "pointsman-picker"])
    variables = {variable["name"]: variable for variable in command["env"]}
    assert variables["POINTSMAN_NATS_PASSWORD"]["valueFrom"] == {"secretKeyRef": {"name": "login", "key": "picker"}}
    environment = {name: variable.get("value", "x") for name, variable in variables.items()}
    settings = parse(PickerSettings, command["args"][1:], environment, "picker")
    assert settings.nats_url == ("tls://bus.example:4222",)
    assert settings.nats_prefix == "second"
    assert (settings.nats_user, settings.nats_password) == ("picker", "x")
    (mount,) = command["volumeMounts"]
    assert settings.nats_ca == f"{mount['mountPath']}/ca.crt"
    (volume,) = objects["Deployment", "pointsman-picker"]["spec"]["template"]["spec"]["volumes"]
    assert volume["name"] == mount["name"]
    assert volume["secret"]["secretName"] == "authority"


def test_pickers_can_have_a_certificate_of_a_secret_or_speak_plain_text(renderer: Renderer) -> None:
    objects = renderer.chart({"picker": {"certificateSecret": "certificate"}})
    settings = console(objects)
    (mount,) = container(objects["Deployment", "pointsman-picker"])["volumeMounts"]
    assert settings.cert_path == mount["mountPath"]
    assert settings.secure_serving
    assert not console(renderer.chart({"picker": {"secureServing": False}})).secure_serving
    assert "volumeMounts" not in container(objects["Deployment", "pointsman-collector"])


@pytest.mark.parametrize("workers", [1, 4])
def test_a_picker_has_as_many_workers_as_told(renderer: Renderer, workers: int) -> None:
    assert console(renderer.chart({"picker": {"workers": workers}})).workers == workers


def test_a_console_knows_its_token_and_its_names(renderer: Renderer) -> None:
    console = {"enabled": True, "tokenSecret": "console", "hostnames": ["a.example", "b.example"]}
    command = container(renderer.chart({"console": console})["Deployment", "pointsman-console"])
    variables = {variable["name"]: variable for variable in command["env"]}
    assert variables["POINTSMAN_CONSOLE_TOKEN"]["valueFrom"] == {"secretKeyRef": {"name": "console", "key": "token"}}
    assert variables["POINTSMAN_NATS_USER"]["value"] == "reader"
    settings = parse(ConsoleSettings, command["args"][1:], {}, "console")
    assert (settings.console_host, settings.console_hostnames) == ("0.0.0.0", ("a.example", "b.example"))


def test_a_console_that_may_act_has_the_token_the_login_and_a_watcher_that_acts(renderer: Renderer) -> None:
    allowed: dict[str, Any] = {"console": {"enabled": True, "allowActions": True, "tokenSecret": "console"}}
    objects = renderer.chart(allowed)
    command = container(objects["Deployment", "pointsman-console"])
    login = {variable["name"]: variable for variable in command["env"]}
    assert login["POINTSMAN_NATS_USER"]["value"] == "operator"
    assert login["POINTSMAN_NATS_PASSWORD"]["valueFrom"]["secretKeyRef"]["key"] == "operator"
    assert parse(ConsoleSettings, command["args"][1:], {}, "console").allow_actions
    assert parse(WatcherSettings, arguments(objects, "watcher")[1:], {}, "watcher").allow_actions
    assert {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]} in objects["Role", "pointsman-watcher"][
        "rules"
    ]
    off = renderer.chart({"console": {**allowed["console"], "enabled": False}})
    assert "--allow-actions" not in arguments(off, "watcher")
    with pytest.raises(RenderError, match=r"console\.allowActions: needs console\.tokenSecret"):
        renderer.chart({"console": {**allowed["console"], "tokenSecret": ""}})


def test_pickers_that_trace_reach_the_receiver(renderer: Renderer) -> None:
    endpoint = "https://traces.example:4317/otlp"
    objects = renderer.chart({"picker": {"tracing": {"enabled": True, "endpoint": endpoint}}})
    command = container(objects["Deployment", "pointsman-picker"])
    assert console(objects).tracing
    assert {"name": "OTEL_EXPORTER_OTLP_ENDPOINT", "value": endpoint} in command["env"]
    opened = {"ports": [{"protocol": "TCP", "port": 4317}]}
    assert opened in objects["NetworkPolicy", "pointsman-picker"]["spec"]["egress"]
    assert opened not in objects["NetworkPolicy", "pointsman-collector"]["spec"]["egress"]


def test_a_longer_drain_is_a_longer_grace(renderer: Renderer) -> None:
    objects = renderer.chart({"picker": {"drainTimeout": 1000, "preStopSleep": 0}})
    assert console(objects).drain_timeout == 1000
    picker = objects["Deployment", "pointsman-picker"]
    assert picker["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > 1000
    assert "lifecycle" not in container(picker)


def test_every_pod_is_made_as_it_is_told(renderer: Renderer) -> None:
    where = {
        "priorityClassName": "high",
        "nodeSelector": {"pool": "cpu"},
        "tolerations": [{"key": "cpu", "operator": "Exists"}],
        "imagePullSecrets": [{"name": "registry"}],
    }
    own: dict[str, Any] = {"extraArgs": ["--log-level=debug"], "extraEnv": [{"name": "A", "value": "b"}]}
    scaled = {**own, "autoscaling": {"enabled": False}, "replicas": 5}
    image = {"repository": "registry.example/pointsman", "tag": "1.2.3"}
    tiers = {"watcher": own, "collector": scaled, "picker": scaled}
    objects = renderer.chart({**where, **tiers, "image": image, "podAnnotations": {"a": "b"}})
    for workload in workloads(objects):
        pod = workload["spec"]["template"]
        assert {key: pod["spec"].get(key) for key in where} == where
        assert pod["metadata"]["annotations"]["a"] == "b"
    for tier in tiers:
        deployment = objects["Deployment", f"pointsman-{tier}"]
        command = container(deployment)
        assert command["image"] == "registry.example/pointsman:1.2.3"
        assert (command["args"][-1], command["env"][-1]) == ("--log-level=debug", {"name": "A", "value": "b"}), "last"
        assert deployment["spec"]["replicas"] == (2 if tier == "watcher" else 5)
    assert not [key for key in objects if key[0] == "HorizontalPodAutoscaler"]


@pytest.mark.parametrize(
    ("value", "kind"), [("serviceMonitor", "ServiceMonitor"), ("prometheusRule", "PrometheusRule")]
)
def test_objects_of_the_prometheus_operator_have_labels_by_which_it_selects_them(
    renderer: Renderer, value: str, kind: str
) -> None:
    objects = renderer.chart({value: {"enabled": True, "labels": {"release": "prometheus"}}})
    assert objects[kind, "pointsman"]["metadata"]["labels"]["release"] == "prometheus"


def test_a_pool_of_ones_own_stays_ones_own(renderer: Renderer, chart: Objects) -> None:
    objects = renderer.chart({"pool": {"create": False, "name": "mine"}})
    assert chart.keys() - objects.keys() == {("InferencePool", "model-servers")}
    assert console(objects).pool_name == "mine"


def test_another_configuration_of_nats_makes_new_pods(renderer: Renderer) -> None:
    first, second = (
        renderer.chart({"nats": {"memoryStore": size}})["StatefulSet", "pointsman-nats"] for size in ("256MB", "1GB")
    )
    assert first["spec"]["template"] != second["spec"]["template"]


@pytest.mark.parametrize("other", [{"pool": {"standalone": True}}, {"watcher": {"endpointSlices": "servers"}}])
def test_several_pools_have_to_be_inference_pools_of_pods(renderer: Renderer, other: dict[str, Any]) -> None:
    watcher = {"pools": ["models/llama"], **other.get("watcher", {})}
    with pytest.raises(RenderError, match=r"watcher\.pools: .* for a watcher of one pool"):
        renderer.chart({**other, "watcher": watcher})
