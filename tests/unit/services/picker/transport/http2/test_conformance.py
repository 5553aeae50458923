"""What h2spec says of the server: each section of its cases, the strict ones with them, without an exception."""

import asyncio

import pytest
from msgspec import structs

from services.picker.transport.grpc_server import DEFAULTS, GrpcServer
from services.picker.transport.http2.frames import MIN_FRAME_LIMIT
from tests.http2_peers import find_h2spec, found

OPTIONS = structs.replace(DEFAULTS, max_concurrent_streams=10, max_frame_size=MIN_FRAME_LIMIT)
"""h2spec opens as many streams as it may, and one more. Its HEADERS of 17 500 bytes exceed the smallest limit alone."""


@pytest.fixture(scope="module")
def h2spec() -> tuple[str, ...]:
    """The command."""
    return found(find_h2spec)


@pytest.mark.parametrize(("section", "cases"), [("generic", 44), ("http2", 95), ("hpack", 7)])
async def test_the_server_conforms(h2spec: tuple[str, ...], section: str, cases: int) -> None:
    server = GrpcServer({}, host="127.0.0.1", port=0, flag="--grpc-port", options=OPTIONS)
    await server.start()
    try:
        command = (*h2spec, section, "--strict", "--timeout", "30", "--port", str(server.port))
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        output = (await process.communicate())[0].decode()
    finally:
        await server.stop(0)
    assert output.rstrip().endswith(f"{cases} tests, {cases} passed, 0 skipped, 0 failed"), output.partition(
        "Failures:"
    )[2]
