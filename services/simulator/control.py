"""The control API, `/control`: faults, pinned metrics, and the server's state."""

import msgspec
from aiohttp import web

from services.simulator.faults import TARGETS, AnyFault, Target
from services.simulator.gauges import Pins
from services.simulator.server import ModelServer


class ControlApi:
    """The handlers of one server."""

    def __init__(self, server: ModelServer) -> None:
        self._server = server

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/control/state", self._state),
            web.get("/control/faults", self._show_faults),
            web.put("/control/faults", self._set_faults),
            web.delete("/control/faults", self._clear_faults),
            web.get("/control/metrics", self._show_pins),
            web.put("/control/metrics", self._set_pins),
            web.delete("/control/metrics", self._clear_pins),
        ]

    async def _state(self, request: web.Request) -> web.Response:
        return _json(self._server.state())

    async def _show_faults(self, request: web.Request) -> web.Response:
        return _json(self._server.faults.describe())

    async def _set_faults(self, request: web.Request) -> web.Response:
        """Set the fault of each target in the body, `null` to clear it; an invalid fault changes nothing."""
        try:
            faults = msgspec.json.decode(await request.read(), type=dict[Target, AnyFault | None])
            for target, fault in faults.items():
                self._server.faults.check(target, fault)
        except (msgspec.DecodeError, ValueError) as error:
            return _refuse(error)
        for target, fault in faults.items():
            self._server.set_fault(target, fault)
        return _json(self._server.faults.describe())

    async def _clear_faults(self, request: web.Request) -> web.Response:
        """Clear all faults, or that of `?target=`."""
        wanted = request.query.get("target")
        if wanted is not None and wanted not in TARGETS:
            return _refuse(ValueError(f"target: {wanted!r} is unknown; expected metrics or inference"))
        for target in TARGETS:
            if wanted in (None, target):
                self._server.set_fault(target, None)
        return _json(self._server.faults.describe())

    async def _show_pins(self, request: web.Request) -> web.Response:
        return _json(self._server.page.pins)

    async def _set_pins(self, request: web.Request) -> web.Response:
        """Replace the pins; absent values are the engine's own again."""
        try:
            pins = msgspec.json.decode(await request.read(), type=Pins)
        except msgspec.DecodeError as error:
            return _refuse(error)
        self._server.page.pin(pins)
        return _json(pins)

    async def _clear_pins(self, request: web.Request) -> web.Response:
        self._server.page.pin(Pins())
        return _json(Pins())


def _json(content: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(content), content_type="application/json")


def _refuse(error: Exception) -> web.Response:
    body = msgspec.json.encode({"error": {"message": str(error), "type": "BadRequestError", "code": 400}})
    return web.Response(body=body, content_type="application/json", status=400)
