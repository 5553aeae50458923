"""What the demo runs: a small pool of unequal model servers, and every tier of Pointsman.

The servers simulate medium GPUs with a small KV cache, so that queues, cache usage and evictions show within seconds.
The configuration is that of docker-compose.yml.
"""

from msgspec import structs

from pointsman.local.services import Flags
from pointsman.local.stack import CONFIGURATION, SimulatorPlan, StackPlan

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


def engine_label(server: SimulatorPlan) -> str:
    """A server's engine, and whether it is slower than the others."""
    return f"{server.engine}, slow" if server.flags["speed"] != _SERVER["speed"] else server.engine


def stack_plan(port: int, *, compare: bool = False) -> StackPlan:
    """The plan with Envoy on that port; 0 is a free one. `compare` adds as many servers that only the demo calls."""
    beside = tuple(structs.replace(server, name=f"beside-{server.name}", listed=False) for server in SERVERS)
    return StackPlan(
        simulators=SERVERS + beside if compare else SERVERS,
        collectors=2,
        pickers=2,
        configuration=CONFIGURATION.read_text(encoding="utf-8"),
        port=port,
    )
