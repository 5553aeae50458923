"""InferencePool, InferenceObjective, InferenceModelRewrite and InferenceModel as documents."""

import pytest

from services.watcher.documents import Documents, read_documents
from services.watcher.resources import PoolId
from shared.config.problems import Problems
from shared.model import (
    Criticality,
    FailureMode,
    Model,
    ModelRewrite,
    Objective,
    Pool,
    RewriteRule,
    Target,
)

OURS = PoolId("default", "llama")


def read(text: str, pool: PoolId | None = OURS) -> Documents:
    problems = Problems()
    documents = read_documents(text, "pool.yaml", problems, pool=pool)
    assert problems.errors == []
    return documents


def errors(text: str) -> list[str]:
    problems = Problems()
    read_documents(text, "pool.yaml", problems, pool=OURS)
    return [str(error) for error in problems.errors]


POOL_V1 = """
apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: llama}
spec:
  selector: {matchLabels: {app: vllm}}
  targetPorts: [{number: 8000}, {number: 8001}]
  appProtocol: kubernetes.io/h2c
  endpointPickerRef: {name: picker, port: {number: 9002}, failureMode: FailOpen}
status: {parents: [{whatever: a cluster wrote}]}
"""

POOL_V1ALPHA2 = """
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferencePool
metadata: {name: llama, namespace: default, uid: 42, labels: {a: b}}
spec:
  selector: {app: vllm}
  targetPortNumber: 8000
  extensionRef: {name: picker, failureMode: FailClose}
"""

POOL_V1ALPHA1 = """
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: InferencePool
metadata: {name: llama}
spec: {selector: {app: vllm}, extensionRef: {name: picker, targetPortNumber: 8000}}
"""


OUR_POOL = Pool(
    name="llama",
    selector={"app": "vllm"},
    target_ports=(8000, 8001),
    app_protocol="kubernetes.io/h2c",
    failure_mode=FailureMode.FAIL_OPEN,
)
FORMER_POOLS = (POOL_V1ALPHA2, POOL_V1ALPHA1)
EXPERIMENTAL = "inference.networking.x-k8s.io"


def objective(spec: str, metadata: str = "{name: batch}") -> str:
    return (
        "apiVersion: inference.networking.x-k8s.io/v1alpha2\nkind: InferenceObjective\n"
        f"metadata: {metadata}\nspec: {spec}\n"
    )


REWRITE = """
apiVersion: inference.networking.x-k8s.io/v1alpha2
kind: InferenceModelRewrite
metadata: {name: canary, creationTimestamp: 2026-08-01T12:00:00Z}
spec:
  poolRef: {name: llama}
  rules:
  - matches: [{model: {value: food}}, {model: {type: Exact, value: meals}}]
    targets: [{modelRewrite: food-v1, weight: 90}, {modelRewrite: food-v2, weight: 10}]
  - targets: [{modelRewrite: base}]
"""


def test_a_rewrite_has_its_rules_in_order() -> None:
    assert read(REWRITE).resources == (
        ModelRewrite(
            name="canary",
            created=1785585600.0,
            rules=(
                RewriteRule(
                    models=("food", "meals"),
                    targets=(Target(model="food-v1", weight=90), Target(model="food-v2", weight=10)),
                ),
                RewriteRule(models=(), targets=(Target(model="base"),)),
            ),
        ),
    )


def test_a_rule_whose_matches_name_no_model_is_never_used_rather_than_always() -> None:
    documents = read(REWRITE.replace("[{model: {value: food}}, {model: {type: Exact, value: meals}}]", "[{}]"))
    [rewrite] = documents.resources
    assert isinstance(rewrite, ModelRewrite)
    assert [rule.targets for rule in rewrite.rules] == [(Target(model="base"),)]
    assert [str(warning) for warning in documents.warnings] == [
        "spec.rules[0].matches: no match names a model, so the rule is never used (line 8)"
    ]


@pytest.mark.parametrize("version", ["v1alpha1", "v1alpha2"])
def test_a_model(version: str) -> None:
    text = f"""
apiVersion: inference.networking.x-k8s.io/{version}
kind: InferenceModel
metadata: {{name: chat, creationTimestamp: "1970-01-01T00:00:10+00:00"}}
spec:
  modelName: chatbot
  criticality: Sheddable
  poolRef: {{name: llama}}
  targetModels: [{{name: llama-a, weight: 3}}, {{name: llama-b, weight: 1}}]
"""
    assert read(text).resources == (
        Model(
            name="chat",
            model_name="chatbot",
            criticality=Criticality.SHEDDABLE,
            targets=(Target(model="llama-a", weight=3), Target(model="llama-b", weight=1)),
            created=10.0,
        ),
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            objective("{poolRef: {name: mistral}}"),
            "InferenceObjective default/batch: for pool 'mistral', and default/llama is served",
        ),
        (
            objective("{poolRef: {name: llama}}", "{name: batch, namespace: other}"),
            "InferenceObjective other/batch: pool default/llama is in another namespace",
        ),
        (POOL_V1.replace("name: llama", "name: mistral"), "InferencePool default/mistral: default/llama is served"),
        (
            "{apiVersion: apps/v1, kind: Deployment, metadata: {name: vllm}}",
            "Deployment vllm: not a kind that an endpoint picker reads",
        ),
        (
            "{apiVersion: serving.kserve.io/v1beta1, kind: InferenceService, metadata: {name: x}}",
            "InferenceService x: not a kind that an endpoint picker reads",
        ),
    ],
)
def test_what_is_for_somebody_else_is_left_out_with_a_reason(text: str, reason: str) -> None:
    documents = read(text)
    assert (documents.resources, documents.ignored) == ((), (reason,))


@pytest.mark.parametrize(
    ("text", "pool", "expected"),
    [
        (objective("{poolRef: {name: mistral}}"), None, Objective(name="batch")),
        (objective("{poolRef: {name: llama}}"), PoolId("models", "llama"), Objective(name="batch", priority=0)),
        (POOL_V1, OURS, OUR_POOL),
        *(
            (each_pool, OURS, Pool(name="llama", selector={"app": "vllm"}, target_ports=(8000,)))
            for each_pool in FORMER_POOLS
        ),
        *(
            (
                objective(f"{{priority: -5, poolRef: {{name: llama, group: {group}}}}}").replace(EXPERIMENTAL, group),
                OURS,
                Objective(name="batch", priority=-5),
            )
            for group in (EXPERIMENTAL, "inference.networking.k8s.io", "llm-d.ai")
        ),
    ],
    ids=["of every pool", "of the pool's namespace", "v1", "alpha 2", "alpha 1", "experimental", "stable", "llm-d"],
)
def test_a_resource_is_read(text: str, pool: PoolId | None, expected: Objective | Pool) -> None:
    assert read(text, pool).resources == (expected,)


def rewrite(rule: str) -> str:
    return (
        "apiVersion: inference.networking.x-k8s.io/v1alpha2\nkind: InferenceModelRewrite\n"
        f"metadata: {{name: a}}\nspec:\n  poolRef: {{name: llama}}\n  rules: [{rule}]\n"
    )


def model(rest: str) -> str:
    return (
        "apiVersion: inference.networking.x-k8s.io/v1alpha2\nkind: InferenceModel\n"
        f"metadata: {{name: a}}\nspec: {{poolRef: {{name: llama}}, {rest}}}\n"
    )


BAD = [
    (
        "{kind: InferencePool, metadata: {name: llama}, spec: {}}",
        ["apiVersion: required, and missing (line 1)"],
    ),
    (
        "{apiVersion: inference.networking.k8s.io/v2, kind: InferencePool, metadata: {name: llama}, spec: {}}",
        ["apiVersion: 'inference.networking.k8s.io/v2' isn't known; v1, v1alpha2, v1alpha1 are (line 1)"],
    ),
    (
        "{apiVersion: apps/v1, kind: InferencePool, metadata: {name: llama}, spec: {}}",
        [
            "apiVersion: 'apps/v1' isn't an API version of this resource; a version of inference.networking.k8s.io or "
            "inference.networking.x-k8s.io or llm-d.ai is expected (line 1)"
        ],
    ),
    (
        "{apiVersion: llm-d.ai/v1alpha2, kind: InferenceObjectiv, metadata: {name: a}}",
        ["kind: 'InferenceObjectiv' isn't known; did you mean 'InferenceObjective'? (line 1)"],
    ),
    ("{kind: Foo}", [
        "kind: 'Foo' isn't known; known: InferencePool, InferenceObjective, InferenceModelRewrite, InferenceModel, "
        "EndpointPickerConfig (line 1)"
    ]),
    ("{kind: [a], endpoints: []}", ["kind: ['a'] isn't a kind; a string is expected (line 1)"]),
    ("{kind: List}", ["items: required, and missing (line 1)"]),
    ("{kind: List, items: 1}", ["items: 1 isn't a list (line 1)"]),
    ("{kind: List, items: [1]}", ["items[0]: 1 isn't an object (line 1)"]),
    (
        "{kind: List, items: [{kind: EndpointPickerConfig}]}",
        ["items[0]: EndpointPickerConfig in a list; a document of its own is expected (line 1)"],
    ),
    (
        "{apiVersion: llm-d.ai/v1alpha2, kind: InferenceObjective}",
        ["metadata: required, and missing (line 1)", "spec: required, and missing (line 1)"],
    ),
    (
        objective("{poolRef: {name: llama}}", "{name: 5, namespace: [], creationTimestamp: soon}"),
        [
            "metadata.name: 5 isn't a name; a string is expected (line 3)",
            "metadata.namespace: [] isn't a name; a string is expected (line 3)",
            "metadata.creationTimestamp: 'soon' isn't a time such as 2026-08-01T12:00:00Z (line 3)",
        ],
    ),
    (objective("{poolRef: {name: llama}}", "[]"), ["metadata: [] isn't a mapping (line 3)"]),
    (objective("{poolRef: {name: llama}}", "{}"), ["metadata.name: required, and missing (line 3)"]),
    (objective("{}"), ["spec.poolRef: required, and missing (line 4)"]),
    (objective("7"), ["spec: 7 is a number; a mapping is expected (line 4)"]),
    (
        objective("{poolRef: {name: llama, group: inference.k8s.io, kind: Service}, priority: high}"),
        [
            "spec.poolRef.group: 'inference.k8s.io' isn't one of 'inference.networking.k8s.io', "
            "'inference.networking.x-k8s.io', 'llm-d.ai' (line 4)",
            "spec.poolRef.kind: 'Service' isn't one of 'InferencePool' (line 4)",
            "spec.priority: 'high' is a string; a whole number is expected (line 4)",
        ],
    ),
    (objective("{poolRef: {name: llama}, priority: 2147483648}"), [
        "spec.priority: 2147483648 is above 2147483647 (line 4)"
    ]),
    (
        objective("{poolRef: {name: llama}, priorty: 1}"),
        ["spec.priorty: unknown field; did you mean 'priority'? (line 4)"],
    ),
    (objective("{poolRef: {name: llama}}") + "sepc: {}\n", ["sepc: unknown field; did you mean 'spec'? (line 5)"]),
    (
        POOL_V1.replace("8001", "8000").replace("kubernetes.io/h2c", "grpc").strip(),
        ["spec.appProtocol: 'grpc' isn't one of '', 'http', 'kubernetes.io/h2c' (line 7)"],
    ),
    (POOL_V1.replace("8001", "8000").strip(), ["spec.targetPorts[1]: port 8000 is given twice (line 6)"]),
    (POOL_V1.replace("8001", "80000").strip(), ["spec.targetPorts[1].number: 80000 is above 65535 (line 6)"]),
    (
        POOL_V1.replace("[{number: 8000}, {number: 8001}]", str([{"number": 1 + n} for n in range(9)])).strip(),
        ["spec.targetPorts: 9 ports; at most 8 are allowed (line 6)"],
    ),
    (  # those beyond the eighth aren't compared with others
        POOL_V1.replace("[{number: 8000}, {number: 8001}]", str([{"number": n} for n in (1, *range(1, 9), 1)])).strip(),
        [
            "spec.targetPorts: 10 ports; at most 8 are allowed (line 6)",
            "spec.targetPorts[1]: port 1 is given twice (line 6)",
        ],
    ),
    (rewrite("{targets: []}"), ["spec.rules[0].targets: empty; at least one model is expected (line 6)"]),
    (rewrite("{}"), ["spec.rules[0].targets: required, and missing (line 6)"]),
    (
        rewrite("{targets: [{modelRewrite: b, weight: 0}]}"),
        ["spec.rules[0].targets[0].weight: 0 is below 1 (line 6)"],
    ),
    (
        rewrite("{matches: [{model: {type: Regex, value: a}}], targets: [{modelRewrite: b}]}"),
        ["spec.rules[0].matches[0].model.type: 'Regex' isn't one of 'Exact' (line 6)"],
    ),
    (
        model("modelName: a, criticality: High"),
        ["spec.criticality: 'High' isn't one of 'Critical', 'Standard', 'Sheddable' (line 4)"],
    ),
    (model(f"modelName: {'a' * 257}"), ["spec.modelName: 257 characters; at most 256 are allowed (line 4)"]),
    (
        model("modelName: a, targetModels: [{name: b, weight: 1}, {name: c}]"),
        ["spec.targetModels[1].weight: missing, where others have one; all or none have a weight (line 4)"],
    ),
    (
        model(f"modelName: a, targetModels: {[{'name': 'm'}] * 11}"),
        ["spec.targetModels: 11 models; at most 10 are allowed (line 4)"],
    ),
    (
        f"{objective('{poolRef: {name: llama}}')}---\n{objective('{poolRef: {name: llama}}')}",
        ["documents[1].metadata.name: InferenceObjective 'batch' is given twice (line 8)"],
    ),
    (
        "kind: EndpointPickerConfig\n---\nkind: EndpointPickerConfig\n",
        ["documents[1].kind: a second EndpointPickerConfig; a pool has one configuration (line 3)"],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), BAD)
def test_a_bad_resource_names_the_field_the_value_and_what_would_be_right(text: str, expected: list[str]) -> None:
    assert errors(text) == expected


def test_the_configuration_is_kept_as_it_was_written() -> None:
    text = "endpoints: []\n---\n# ours\nkind: EndpointPickerConfig  # comment\nplugins: []\n---\nendpoints: []\n"
    configuration = read(text).configuration
    assert configuration is not None
    assert configuration.text == "---\n# ours\nkind: EndpointPickerConfig  # comment\nplugins: []\n"
    assert configuration.origin == "pool.yaml"


@pytest.mark.parametrize(
    "section",
    ["plugins", "schedulingProfiles", "data", "dataLayer", "featureGates", "flowControl", "requestHandler", "parser"],
)
def test_a_document_with_a_section_of_a_configuration_is_one_whatever_else_it_lacks(section: str) -> None:
    problems = Problems()
    read = read_documents(f"{section}: []\n", "config.yaml", problems)
    assert read.configuration is not None
    assert problems.errors == []
