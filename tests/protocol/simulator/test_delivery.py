from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from services.simulator.delivery import ResponseWriter
from services.simulator.faults import Truncate


async def test_a_truncated_stream_has_one_event_also_when_several_are_written_at_once() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        reply = ResponseWriter(request)
        reply.fault = Truncate()
        await reply.begin("text/event-stream")
        await reply.write(b"data: 1\n\ndata: 2\n\ndata: [DONE]\n\n")
        await reply.write(b"data: 3\n\n")
        return await reply.end()

    app = web.Application()
    app.router.add_get("/", answer)
    async with TestClient(TestServer(app)) as client:
        assert await (await client.get("/")).read() == b"data: 1\n\n"
