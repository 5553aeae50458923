"""The system that is attacked: every tier twice, an Envoy that fails closed, good and hostile model servers.

Hostile servers are scraped and never picked: a filter keeps requests on the good ones. Half of the seeds attack a pool
that serves one model by its name, the others one that rewrites whatever model is asked for.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from pointsman.local.envoy import STANDALONE_CLOSED, load
from pointsman.local.ports import LOOPBACK
from pointsman.local.stack import ENGINE_LABEL, LocalStack, SimulatorPlan, StackPlan
from tests.protocol.envoy.conftest import unhurried

MODEL = "simulated"
UNNAMED = "unnamed"
"""A model that the servers have, and that a closed pool doesn't name."""
ROLE = {"role": "good"}

CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {type: label-selector-filter, parameters: {matchLabels: {role: good}}}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- {type: max-score-picker, parameters: {maxNumOfEndpoints: 2}}
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: label-selector-filter}
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
  - {pluginRef: max-score-picker}
"""
NAMED = f"""\
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModel
metadata: {{name: named}}
spec: {{modelName: {MODEL}, poolRef: {{name: default}}}}
"""
REWRITTEN = f"""\
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModelRewrite
metadata: {{name: all}}
spec: {{poolRef: {{name: default}}, rules: [{{targets: [{{modelRewrite: {MODEL}}}]}}]}}
"""


def closed(seed: int) -> bool:
    """Whether the pool of this seed serves only the model that it names."""
    return seed % 2 == 1


def plan(seed: int, directory: Path, *, patient: bool) -> StackPlan:
    """With `patient` Envoy waits for every picker that stands still, however busy the machine is."""
    flags: dict[str, str | int | float] = {
        "speed": 100,
        "models": f"{MODEL},{UNNAMED}",
        "max-body": "256Ki",  # what is larger is meant for pickers, and would keep these servers from others' requests
    }
    envoy = STANDALONE_CLOSED if closed(seed) else _any_path(directory)
    return StackPlan(
        simulators=tuple(SimulatorPlan(name=f"model-{number}", labels=ROLE, flags=flags) for number in (1, 2)),
        watchers=2,
        configuration=CONFIGURATION,
        resources=NAMED if closed(seed) else REWRITTEN,
        envoy=unhurried(envoy, directory) if patient else envoy,
        flags={"picker": {"drain-delay": "500ms"}},
    )


def _any_path(directory: Path) -> Path:
    """The closed Envoy with routes for every path, so that odd paths reach pickers."""
    document = load(STANDALONE_CLOSED)
    [gateway] = [listener for listener in document["static_resources"]["listeners"] if listener["name"] == "gateway"]
    [manager] = gateway["filter_chains"][0]["filters"]
    [host] = manager["typed_config"]["route_config"]["virtual_hosts"]
    host["routes"] = [route for route in host["routes"] if "route" in route]
    for route in host["routes"]:
        del route["match"]["safe_regex"]
        route["match"]["prefix"] = "/"
    path = directory / "standalone-any-path.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return path


def good_document(stack: LocalStack, hostile: Sequence[int] = ()) -> dict[str, Any]:
    """The endpoints file's first document: the good servers, and hostile ones on these ports."""
    labels = {ENGINE_LABEL: "vllm"}
    servers = [
        {"name": server.name, "address": server.http.host, "port": server.http.port, "labels": server.labels}
        for server in stack.simulators
    ]
    servers += [{"name": f"hostile-{port}", "address": LOOPBACK, "port": port, "labels": labels} for port in hostile]
    return {"endpoints": servers}


def good_file(stack: LocalStack, hostile: Sequence[int] = ()) -> bytes:
    """The endpoints file that is always there between two hostile ones. Half of it may be a valid file, so what closes
    the pool comes first."""
    return f"{stack.plan.resources}---\n{yaml.safe_dump(good_document(stack, hostile), sort_keys=False)}".encode()


def replace(path: Path, content: bytes) -> None:
    """By rename, as the docs recommend."""
    draft = path.with_name(f".{path.name}.new")
    draft.write_bytes(content)
    os.replace(draft, path)
