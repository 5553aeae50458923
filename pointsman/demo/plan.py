"""What the demo runs: a small pool of unequal model servers, and every tier of Pointsman.

The servers simulate medium GPUs with a small KV cache, so that queues, cache usage and evictions show within seconds.
The configuration is that of docker-compose.yml. A pool of prefill and decode servers has that of docs/profiles.
"""

from pathlib import Path

from msgspec import structs

from pointsman.local.services import Flags
from pointsman.local.stack import CONFIGURATION, SimulatorPlan, StackPlan
from shared.model import ROLE

PD_CONFIGURATION = Path(__file__).with_name("prefill-decode.yaml")
_PICKER = "- type: max-score-picker"
PREFILL = "prefill"
BASE = "llama-3.1-8b"
ADAPTER = "llama-3.1-8b-sql"
MODELS = (BASE, ADAPTER)
"""What every server serves: a base model and a LoRA adapter."""

_SERVER: Flags = {"models": BASE, "adapters": ADAPTER, "slots": 8, "kv-blocks": 900, "speed": 1.5}
SERVERS = (
    SimulatorPlan(name="model-1", flags=_SERVER),
    SimulatorPlan(name="model-2", flags=_SERVER),
    SimulatorPlan(name="model-3", flags={**_SERVER, "speed": 0.75}),
    SimulatorPlan(name="model-4", engine="sglang", flags=_SERVER),
)
PD_SERVERS = (
    SimulatorPlan(name="prefill-1", labels={ROLE: PREFILL}, flags=_SERVER),
    SimulatorPlan(name="prefill-2", labels={ROLE: PREFILL}, flags=_SERVER),
    SimulatorPlan(name="decode-1", labels={ROLE: "decode"}, flags={**_SERVER, "sidecar": "true"}),
    SimulatorPlan(name="decode-2", labels={ROLE: "decode"}, flags={**_SERVER, "sidecar": "true"}),
)


def engine_label(server: SimulatorPlan) -> str:
    """What a server does, or its engine, and whether it is slower than the others."""
    if role := server.labels.get(ROLE):
        return role
    return f"{server.engine}, slow" if server.flags["speed"] != _SERVER["speed"] else server.engine


def stack_plan(
    port: int, *, pd: bool = False, compare: bool = False, token: str = "", tracing: bool = False
) -> StackPlan:
    """The plan with Envoy on that port; 0 is a free one. `pd` is a pool of prefill and decode servers. `compare` adds
    as many servers without roles that only the demo calls. With a `token`, the console may drain endpoints for those
    who have it. `tracing` has the pickers trace requests."""
    configuration = (PD_CONFIGURATION if pd else CONFIGURATION).read_text(encoding="utf-8")
    if pd:
        configuration = configuration.replace(_PICKER, f"{_PICKER}\n  parameters:\n    maxNumOfEndpoints: 3", 1)
    beside = tuple(structs.replace(server, name=f"beside-{server.name}", listed=False) for server in SERVERS)
    return StackPlan(
        simulators=(PD_SERVERS if pd else SERVERS) + (beside if compare else ()),
        collectors=2,
        pickers=2,
        consoles=1,
        configuration=configuration,
        port=port,
        console_token=token,
        flags={"picker": {"tracing": "true"}} if tracing else {},
    )
