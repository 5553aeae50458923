"""The model servers of a simulation: the simulator's engine, and what a collector would read of it."""

from collections.abc import Sequence

import numpy as np

from pointsman.lab.workload import BYTES_PER_TOKEN
from services.simulator.engine import ContextTooLong, Engine, Overloaded
from services.simulator.sequence import EngineRequest, RequestOutput
from services.simulator.settings import SimulatorSettings
from services.simulator.tokens import Prompt
from shared.attributes import (
    CACHE_BLOCK_SIZE,
    CACHE_NUM_BLOCKS,
    KV_CACHE_USAGE,
    RUNNING_REQUESTS_SIZE,
    WAITING_QUEUE_SIZE,
    AttributeKey,
)
from shared.bus.columns import pack_ages, pack_floats
from shared.bus.messages import Frame
from shared.model import Endpoint


class LabServer:
    """One server. Times are nanoseconds."""

    def __init__(self, number: int, settings: SimulatorSettings) -> None:
        self.name = f"server-{number:03}"
        self.endpoint = Endpoint(
            id=self.name,
            name=self.name,
            address=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
            port=8000,
        )
        self.engine = Engine(settings, 0)
        self.open = 0
        """Requests that it has, running and waiting."""
        self.wakes_at: int | None = None
        """When it is to be advanced next."""

    def submit(self, id: str, prompt: bytes, output_tokens: int, now: int) -> str:
        """Take a request. Empty, or why it is refused."""
        output = b"\0" * (output_tokens * BYTES_PER_TOKEN)
        try:
            self.engine.submit(EngineRequest(id=id, prompt=Prompt(prompt), output=output, stream=True), now)
        except (ContextTooLong, Overloaded) as error:
            return str(error)
        self.open += 1
        return ""

    def advance(self, now: int) -> list[RequestOutput]:
        """First tokens and ends of requests since the last time."""
        progress = self.engine.advance(now)
        self.open -= sum(output.finished for output in progress)
        return progress

    def __repr__(self) -> str:
        return f"<LabServer {self.name}: {self.engine!r}>"


def frame_of(servers: Sequence[LabServer], sequence: int, now: float) -> Frame:
    """A frame of these servers' metrics."""
    states = [server.engine.state() for server in servers]
    settings = servers[0].engine.settings
    size = len(servers)
    columns: dict[AttributeKey[float], Sequence[float]] = {
        WAITING_QUEUE_SIZE: [state.waiting for state in states],
        RUNNING_REQUESTS_SIZE: [state.running for state in states],
        KV_CACHE_USAGE: [state.kv_usage for state in states],
        CACHE_BLOCK_SIZE: [settings.block_tokens] * size,
        CACHE_NUM_BLOCKS: [settings.kv_blocks] * size,
    }
    ages = pack_ages(np.zeros(size))
    return Frame(
        sender="collector",
        sent=now,
        sequence=sequence,
        ids=tuple(server.name for server in servers),
        columns={key.wire: pack_floats(values) for key, values in columns.items()},
        ages={key.wire: ages for key in columns},
    )
