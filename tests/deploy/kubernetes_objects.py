"""What the chart doesn't bring: model servers, and an Envoy of one's own as docs/kubernetes.md describes it."""

from typing import Any

import yaml

from tests.deploy.images import OURS, ROOT

NAMESPACE = "inference"
RELEASE = "pointsman"
MODEL_SERVER = {"app": "model-server"}
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
    "watcher": {"resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}}},
    "nats": {"resources": {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "512Mi"}}},
    "configuration": (ROOT / "deploy/compose/pointsman.yaml").read_text(),
}
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


def namespace() -> Object:
    """With the restricted Pod Security Standard, which every pod has to meet."""
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}


def model_servers(replicas: int) -> Object:
    name = {"name": "POINTSMAN_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container = {
        "name": "simulator",
        "image": OURS,
        "args": ["simulator", "--host=0.0.0.0", "--port=8000"],
        "env": [name],
        "ports": [{"containerPort": 8000}],
        # On a busy machine an answer may take a second: a pool without a ready pod answers 503.
        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}, "periodSeconds": 1, "timeoutSeconds": 3},
        "securityContext": _SECURITY,
    }
    return _deployment("model-server", MODEL_SERVER, replicas, {"containers": [container]})


def envoy() -> list[Object]:
    """deploy/kubernetes/envoy.yaml, with the ConfigMap of docs/kubernetes.md."""
    configuration = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "envoy"},
        "data": {"standalone.yaml": (ROOT / "deploy/envoy/standalone.yaml").read_text()},
    }
    return [configuration, *yaml.safe_load_all((ROOT / "deploy/kubernetes/envoy.yaml").read_text())]


def _deployment(name: str, labels: Object, replicas: int, pod: Object) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
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
