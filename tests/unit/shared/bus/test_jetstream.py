"""What JetStream's API answers."""

from types import SimpleNamespace
from typing import Any

import pytest

from shared.bus import jetstream
from shared.bus.errors import BusError


@pytest.mark.parametrize("data", [b"{", b"[]", b'{"error": {"description": "\xff"}}', b'{"config": ' + b"[" * 100_000])
async def test_an_answer_that_cant_be_read_is_an_error_of_the_bus(data: bytes) -> None:
    class Bus:
        async def request(self, *_: Any, **__: Any) -> Any:
            return SimpleNamespace(data=data)

    bus: Any = Bus()
    with pytest.raises(BusError, match="can't be read"):
        await jetstream.api(bus, "INFO", {})
