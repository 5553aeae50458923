"""Readiness probes of processes: an HTTP path with status 200, the greeting of a nats-server."""

import asyncio
import json

import httpx

from pointsman.local.process import NotReady, Probe

TIMEOUT = 1.0
"""Seconds for one probe."""


def http(url: str) -> Probe:
    """Ready if a GET gets 200. The reason is that of a service's `/readyz`, or the first line of another response."""

    async def probe() -> None:
        # Proxies of the environment don't apply to this host. Loading certificates would cost time and isn't needed.
        async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, verify=False) as client:
            try:
                response = await client.get(url)
            except httpx.HTTPError as error:
                raise NotReady(f"{url}: {str(error) or type(error).__name__}") from error
        if response.status_code != 200:
            raise NotReady(f"{url} has status {response.status_code}: {_reasons(response.text)}")

    return probe


def nats(host: str, port: int, server_name: str) -> Probe:
    """Ready if nats-server greets with this name, as another one may have the port, and has JetStream."""

    async def probe() -> None:
        where = f"{host}:{port}"
        try:
            async with asyncio.timeout(TIMEOUT):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    line = await reader.readline()
                finally:
                    writer.close()
            info = json.loads(line.removeprefix(b"INFO "))
        except (OSError, TimeoutError, ValueError) as error:
            raise NotReady(f"{where}: {str(error) or type(error).__name__}") from error
        if info.get("server_name") != server_name:
            raise NotReady(f"{where} is another server, {info.get('server_name')!r}")
        if not info.get("jetstream"):
            raise NotReady(f"{where} has no JetStream yet")

    return probe


def _reasons(body: str) -> str:
    try:
        reasons = json.loads(body)["reasons"]
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    except (ValueError, LookupError, TypeError, AttributeError):
        return body.strip().partition("\n")[0][:200]
