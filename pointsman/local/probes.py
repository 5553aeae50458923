"""Whether a process is ready, asked from outside: an HTTP path that answers 200, a TCP port that says hello."""

import asyncio
import json

import httpx

from pointsman.local.process import NotReady, Probe

TIMEOUT = 1.0
"""Seconds for one question."""


def http(url: str) -> Probe:
    """Ready when a GET gives 200. Of a service's `/readyz` the reasons are repeated, of others the first line."""

    async def probe() -> None:
        # The environment's proxies are for other hosts than this one; no TLS on loopback, so no certificates to load.
        async with httpx.AsyncClient(timeout=TIMEOUT, trust_env=False, verify=False) as client:
            try:
                response = await client.get(url)
            except httpx.HTTPError as error:
                raise NotReady(f"{url}: {str(error) or type(error).__name__}") from error
        if response.status_code != 200:
            raise NotReady(f"{url} says {response.status_code}: {_reasons(response.text)}")

    return probe


def greeting(host: str, port: int, start: bytes) -> Probe:
    """Ready when the server's first line begins like this."""

    async def probe() -> None:
        where = f"{host}:{port}"
        try:
            async with asyncio.timeout(TIMEOUT):
                reader, writer = await asyncio.open_connection(host, port)
                try:
                    line = await reader.readline()
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            raise NotReady(f"{where}: {str(error) or type(error).__name__}") from error
        if not line.startswith(start):
            raise NotReady(f"{where} says {line[:80]!r}")

    return probe


def _reasons(body: str) -> str:
    try:
        reasons = json.loads(body)["reasons"]
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
    except (ValueError, LookupError, TypeError, AttributeError):
        return body.strip().partition("\n")[0][:200]
