"""A picker of two workers behind the real Envoy, with each of the two configurations: both workers serve it, in
plaintext and with a certificate that changes meanwhile."""

import asyncio
import os
import signal
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import structs

from pointsman.local.services import Picker
from pointsman.local.stack import LocalStack
from services.picker.transport.certificate import Certificate, self_signed
from tests.protocol.system.conftest import ENVOYS, SIMULATORS, nothing_in_flight, plan
from tests.waiting import eventually

CHAT = {"model": "base", "messages": [{"role": "user", "content": "Hello " * 200}], "max_tokens": 4}
AT_ONCE = 8


@pytest.mark.parametrize("envoy", ENVOYS)
async def test_both_workers_serve_envoy_through_a_new_certificate_and_the_end_of_one(
    envoy: str, tmp_path: Path
) -> None:
    folder = tmp_path / "certificate"
    folder.mkdir()
    write(folder, made())
    planned = plan(envoy, tmp_path, SIMULATORS[:2])
    flags = {"workers": 2, "drain-delay": "500ms"}
    if planned.secure_serving:
        flags |= {"cert-path": str(folder), "enable-cert-reload": "true"}
    planned = structs.replace(planned, pickers=1, envoy_concurrency=2, flags={"picker": flags})
    async with LocalStack(planned, tmp_path) as stack:
        (picker,) = stack.pickers
        await all_serve(stack, picker)
        if planned.secure_serving:
            write(folder, new := made())
            await shown(picker, new)
            await all_serve(stack, picker)
        killed = (await workers(picker))["picker-1-0"]["pid"]
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: replaced(picker, killed), "the worker comes back")
        await all_serve(stack, picker)
        if planned.secure_serving:
            await shown(picker, new)
        await nothing_in_flight(stack.pickers)


def made() -> Certificate:
    return self_signed(["127.0.0.1"], datetime.now(UTC))


def write(folder: Path, certificate: Certificate) -> None:
    (folder / "tls.crt").write_text(certificate.chain)
    (folder / "tls.key").write_text(certificate.key)


async def workers(picker: Picker) -> dict[str, Any]:
    found: dict[str, Any] = (await picker.state())["workers"]
    return found


async def replaced(picker: Picker, pid: int) -> bool:
    found = (await workers(picker)).values()
    return all(worker["picker"] and worker["pid"] != pid for worker in found)


async def picks(picker: Picker) -> list[int]:
    """By worker."""

    async def answered() -> list[dict[str, Any]]:
        states = [worker["picker"] for worker in (await workers(picker)).values()]
        return states if all(states) else []

    states = await eventually(answered, "an answer of each worker")
    return [sum(endpoint["picks"] for endpoint in state["endpoints"]) for state in states]


async def all_serve(stack: LocalStack, picker: Picker) -> None:
    """Wait until each worker has decided on requests. All are answered, whichever of Envoy's threads gets them."""
    before, statuses = await picks(picker), set[int]()

    async def served() -> bool:
        async with httpx.AsyncClient(base_url=stack.url, timeout=30, trust_env=False) as client:
            answers = await asyncio.gather(*(client.post("/v1/chat/completions", json=CHAT) for _ in range(AT_ONCE)))
        statuses.update(answer.status_code for answer in answers)
        return all(then < now for then, now in zip(before, await picks(picker), strict=True))

    await eventually(served, "both workers decide")
    assert statuses == {200}


async def shown(picker: Picker, certificate: Certificate) -> None:
    """Wait until new connections, of which each worker gets one, are shown this certificate."""
    context = ssl.create_default_context(cadata=certificate.chain)

    async def so() -> bool:
        opened = await asyncio.gather(*(_connection(picker, context) for _ in range(2)), return_exceptions=True)
        writers = [result for result in opened if isinstance(result, asyncio.StreamWriter)]
        for writer in writers:
            writer.close()
        assert all(isinstance(result, (asyncio.StreamWriter, ssl.SSLCertVerificationError)) for result in opened), (
            opened
        )
        return len(writers) == len(opened)

    await eventually(so, "the new certificate", step=0.05)


async def _connection(picker: Picker, context: ssl.SSLContext) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", picker.address.port, ssl=context)
    return writer
