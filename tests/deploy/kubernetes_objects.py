"""What the chart doesn't bring: model servers, and an Envoy of one's own as docs/kubernetes.md describes it."""

import base64
from typing import Any

import yaml

from shared.bus.accounts import USERS
from tests.deploy.images import NATS, OURS, ROOT

NAMESPACE = "inference"
RELEASE = "pointsman"
MODEL_SERVER = {"app": "model-server"}
"""Those with a login for NATS."""
_CERTIFICATE = "/etc/certificate"
_KEEP = "--keep-unreachable"
"""The only node is all of them."""
Object = dict[str, Any]

VALUES: Object = {
    "pool": {"name": "model-servers", "selector": MODEL_SERVER, "targetPorts": [8000]},
    # Envoy speaks no TLS to the pickers here, and tries three endpoints.
    "picker": {
        "secureServing": False,
        "autoscaling": {"enabled": False},
        "replicas": 2,
        "drainTimeout": 30,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}},
    },
    "collector": {
        "autoscaling": {"enabled": False},
        "replicas": 2,
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    },
    "watcher": {
        "extraArgs": [_KEEP],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
    },
    "nats": {"resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}},
    "configuration": (ROOT / "deploy/compose/pointsman.yaml").read_text(),
}
_LITTLE: Object = {"replicas": 1, "resources": {"requests": {"cpu": "20m", "memory": "64Mi"}}}
SMALL: Object = {
    "watcher": _LITTLE,
    "collector": {**_LITTLE, "autoscaling": {"enabled": False}},
    "picker": {**_LITTLE, "replicas": 2, "autoscaling": {"enabled": False}, "drainTimeout": 30},
}
"""For an Envoy as gateways configure it, which retries a request at another picker."""
_POD_SECURITY: Object = {
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "runAsGroup": 65532,
    "fsGroup": 65532,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def namespace(name: str) -> Object:
    """With the restricted Pod Security Standard, which every pod has to meet."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def model_servers(replicas: int) -> Object:
    name = {"name": "POINTSMAN_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container = {
        "name": "simulator",
        "image": OURS,
        "args": ["simulator", "--host=0.0.0.0", "--port=8000"],
        "env": [name],
        "ports": [{"containerPort": 8000}],
        "resources": {"requests": {"cpu": "50m", "memory": "64Mi"}},
        # On a busy machine an answer may take seconds: a pool without a ready pod answers 503.
        "readinessProbe": {
            "httpGet": {"path": "/health", "port": 8000},
            "periodSeconds": 1,
            "timeoutSeconds": 3,
            "failureThreshold": 10,
        },
        "securityContext": _SECURITY,
    }
    return _deployment("model-server", MODEL_SERVER, replicas, {"containers": [container]})


def envoy() -> list[Object]:
    """deploy/kubernetes/envoy.yaml, with the ConfigMap of docs/kubernetes.md."""
    text = (ROOT / "deploy/envoy/standalone.yaml").read_text()
    *others, deployment = _around_envoy()
    deployment["spec"]["template"]["spec"]["initContainers"][0]["args"].append(_KEEP)
    return [config_map("envoy", {"standalone.yaml": text}), *others, deployment]


def gateway(certificate: str = "") -> list[Object]:
    """The same Envoy as gateways configure it: it speaks TLS to the pickers, and needs no watcher beside it. With the
    name of a Secret (tls.crt, tls.key, ca.crt) both sides show certificates."""
    configuration = yaml.safe_load((ROOT / "deploy/envoy/gateway.yaml").read_text())
    *others, deployment = _around_envoy()
    pod = deployment["spec"]["template"]["spec"]
    del pod["initContainers"]
    pod["serviceAccountName"] = "default"
    pod["volumes"] = [{"name": "configuration", "configMap": {"name": "envoy"}}]
    (container,) = pod["containers"]
    container["command"] = ["envoy", "--config-path", "/etc/envoy/gateway.yaml", "--disable-hot-restart"]
    container["resources"]["requests"]["cpu"] = "50m"
    container["volumeMounts"] = [{"name": "configuration", "mountPath": "/etc/envoy", "readOnly": True}]
    if certificate:
        pod["volumes"].append({"name": "certificate", "secret": {"secretName": certificate}})
        container["volumeMounts"].append({"name": "certificate", "mountPath": _CERTIFICATE, "readOnly": True})
        (pickers,) = (one for one in configuration["static_resources"]["clusters"] if one["name"] == "pickers")
        pickers["transport_socket"]["typed_config"]["common_tls_context"] |= {
            "tls_certificates": [
                {
                    "certificate_chain": {"filename": f"{_CERTIFICATE}/tls.crt"},
                    "private_key": {"filename": f"{_CERTIFICATE}/tls.key"},
                }
            ],
            "validation_context": {"trusted_ca": {"filename": f"{_CERTIFICATE}/ca.crt"}},
        }
    return [config_map("envoy", {"gateway.yaml": yaml.safe_dump(configuration)}), *others, deployment]


def _around_envoy() -> list[Object]:
    return list(yaml.safe_load_all((ROOT / "deploy/kubernetes/envoy.yaml").read_text()))


BUS = "10.96.77.77"
"""The address of the NATS below, to which its certificate is issued."""


def bus(accounts: str, logins: str, certificate: str) -> list[Object]:
    """A nats-server that belongs to no release: TLS, and these accounts, with the passwords of the Secret `logins`."""
    configuration = f"""\
port: 4222
tls {{ cert_file: "{_CERTIFICATE}/tls.crt", key_file: "{_CERTIFICATE}/tls.key" }}
jetstream {{ store_dir: "/data", max_memory_store: 64MB, max_file_store: 64MB }}
{accounts}"""
    container = {
        "name": "nats",
        "image": NATS,
        "command": ["nats-server"],
        "args": ["--config", "/etc/nats/nats.conf"],
        "env": [
            {"name": f"{tier.upper()}_PASSWORD", "valueFrom": {"secretKeyRef": {"name": logins, "key": tier}}}
            for tier in USERS
        ],
        "readinessProbe": {"tcpSocket": {"port": 4222}, "periodSeconds": 1},
        "securityContext": _SECURITY,
        "volumeMounts": [
            {"name": "configuration", "mountPath": "/etc/nats", "readOnly": True},
            {"name": "certificate", "mountPath": _CERTIFICATE, "readOnly": True},
            {"name": "data", "mountPath": "/data"},
        ],
    }
    volumes = [
        {"name": "configuration", "configMap": {"name": "bus"}},
        {"name": "certificate", "secret": {"secretName": certificate}},
        {"name": "data", "emptyDir": {}},
    ]
    service = {"selector": {"app": "bus"}, "clusterIP": BUS, "ports": [{"port": 4222}]}
    return [
        config_map("bus", {"nats.conf": configuration}),
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "bus"}, "spec": service},
        _deployment("bus", {"app": "bus"}, 1, {"containers": [container], "volumes": volumes}),
    ]


def config_map(name: str, data: dict[str, str]) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def secret(name: str, data: dict[str, str]) -> Object:
    encoded = {key: base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": encoded}


def _deployment(name: str, labels: Object, replicas: int, pod: Object) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"securityContext": _POD_SECURITY, "enableServiceLinks": False, **pod},
            },
        },
    }
