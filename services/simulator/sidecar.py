"""llm-d's routing sidecar, which stands before a decode server: it has a prefill server compute the prompt first.

As there with its defaults, the prefill server is asked once: its error is the client's, and a server that can't be
reached is a 502. The sidecar and the decode server behind it are one process here.
"""

from typing import Any

import aiohttp
import msgspec
from aiohttp import web

from services.simulator.api_error import ApiError, bad_request
from services.simulator.kv_transfer import ASKED, PREFILLER

_CHAT = ("max_tokens", "max_completion_tokens")
LIMITS = {
    "/v1/chat/completions": _CHAT,
    "/v1/completions": _CHAT,
    "/v1/messages": _CHAT,
    "/v1/responses": ("max_output_tokens",),
}
"""The paths that it reads, and the fields by which their output is limited to a token for the prefill."""
_KEPT_BACK = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding", PREFILLER})
"""Headers that don't go on to the prefill server."""
_object = msgspec.json.Decoder(dict[str, Any])


class PrefillFailed(Exception):
    """The prefill server answered with an error, or can't be reached; the client gets the same."""

    def __init__(self, status: int, body: bytes = b"", content_type: str = "application/json") -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.body = body
        self.content_type = content_type


class Sidecar:
    """Asks prefill servers."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def prefill(self, request: web.Request, body: bytes) -> tuple[bytes, str]:
        """Have the server that the header names compute the prompt. Returns the body for the decode server, which says
        where the blocks are, and the prefill server's name; the body itself and no name without the header.

        Raises `PrefillFailed`, and `ApiError` for a body that isn't a JSON object.
        """
        server = request.headers.get(PREFILLER, "").partition(",")[0].strip()
        limits = LIMITS.get(request.path)
        if not server or limits is None:
            return body, ""
        try:
            fields = _object.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise bad_request(f"The body is not a JSON object: {error}") from error
        asked = {name: value for name, value in fields.items() if name != "stream_options"}
        asked |= {"stream": False, "kv_transfer_params": ASKED, **dict.fromkeys(limits, 1)}
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _KEPT_BACK}
        answer, name = await self._post(f"http://{server}{request.path}", msgspec.json.encode(asked), headers)
        return msgspec.json.encode({**fields, "kv_transfer_params": answer.get("kv_transfer_params")}), name

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _post(self, url: str, body: bytes, headers: dict[str, str]) -> tuple[dict[str, Any], str]:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
            )
        try:
            async with self._session.post(url, data=body, headers=headers) as response:
                text = await response.read()
        except (aiohttp.ClientError, ValueError) as error:
            raise PrefillFailed(502) from error
        if response.status != 200:
            raise PrefillFailed(response.status, text, response.headers.get("content-type", "application/json"))
        try:
            return _object.decode(text), response.headers.get("x-simulator-endpoint", url)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ApiError(400, "BadRequestError", f"The prefill server's response is not JSON: {error}") from error

    def __repr__(self) -> str:
        return f"<Sidecar {'idle' if self._session is None else 'connected'}>"
