"""What the demo runs: a small pool of unequal model servers, and every tier of Pointsman.

The servers simulate medium GPUs with a small KV cache, so that queues, cache usage and evictions show within seconds.
The configuration is that of docker-compose.yml.
"""

from pathlib import Path

from pointsman.local.envoy import ConfigurationError
from pointsman.local.services import ROOT, Flags
from pointsman.local.stack import SimulatorPlan, StackPlan

CONFIGURATION = ROOT / "deploy" / "compose" / "pointsman.yaml"
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


def stack_plan(port: int) -> StackPlan:
    """The plan with Envoy on that port; 0 is a free one. Raises ConfigurationError."""
    return StackPlan(
        simulators=SERVERS, collectors=2, pickers=2, configuration=_text(CONFIGURATION), port=port, log_level="info"
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path} ({error}); the demo needs a checkout") from error
