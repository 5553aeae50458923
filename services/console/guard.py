"""Checks every request to the console: who may ask, how much, and what browsers may do with the answer.

Without a token, only requests by an IP address, `localhost` or a configured name are answered
(`shared.service.host_names`).
"""

import hmac
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.content_length import content_length
from shared.service.admin import as_json
from shared.service.host_names import HostNames

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Of every answer that doesn't set its own."""
API = "/api/"
SHOWN = 80


class Guard:
    """Wraps the console's application."""

    def __init__(self, app: ASGIApp, *, token: str, hostnames: Collection[str], limit: int) -> None:
        """`limit`: bytes of a body."""
        self._app = app
        self._token = token.encode()
        self._hostnames = HostNames(hostnames, "--console-hostnames")
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = Headers(scope=scope)
        api = scope["path"].startswith(API)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    sent.setdefault(name, value)
                if api:
                    sent["cache-control"] = "no-store"
            await send(message)

        if refusal := self._refusal(headers, api):
            status, problem = refusal
            response = as_json({"error": problem}, status, {"www-authenticate": "Bearer"} if status == 401 else None)
            await response(scope, receive, send_with_headers)
            return
        await self._app(scope, self._bounded(receive), send_with_headers)

    def _refusal(self, headers: Headers, api: bool) -> tuple[int, str] | None:
        if api and headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return 403, "the request comes from another site"
        declared = headers.get("content-length", "0")
        length = content_length(declared)
        if length is None or length > self._limit:
            return 413, f"a body of {declared[:SHOWN]} bytes; {self._limit} are allowed"
        if self._token:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            known = scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)
            return (401, "the API requires the console's token") if api and not known else None
        problem = self._hostnames.refusal(headers.get("host", ""))
        return None if problem is None else (403, problem)

    def _bounded(self, receive: Receive) -> Receive:
        left = self._limit

        async def receive_some() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"a body of more than {self._limit} bytes")
            return message

        return receive_some

    def __repr__(self) -> str:
        return f"<Guard {'with' if self._token else 'without'} a token>"
