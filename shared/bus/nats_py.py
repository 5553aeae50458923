"""Imports nats-py without aiohttp: it needs that only for WebSocket addresses, which no setting takes. Saves 8 MB."""

import sys

if "aiohttp" in sys.modules:
    import nats.aio.transport
else:
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    try:
        import nats.aio.transport  # noqa: F401
    finally:
        del sys.modules["aiohttp"]
