"""Who may ask the console, how much, and what comes with every answer."""

from collections.abc import Mapping

import httpx
import pytest
from fastapi import FastAPI, Request

from services.console.app import ConsoleService
from services.console.guard import POLICY, Guard
from services.console.settings import ConsoleSettings
from shared.config.problems import Invalid
from shared.service.admin import add_refusals


def client(*, token: str = "", hostnames: tuple[str, ...] = ()) -> httpx.AsyncClient:
    app = FastAPI()
    add_refusals(app)

    @app.get("/")
    async def page() -> str:
        return "page"

    @app.post("/api/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    guard = Guard(app, token=token, hostnames=hostnames, limit=100)
    return httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1:8090")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8090", 200),
        ("[::1]:8090", 200),
        ("localhost", 200),
        ("Console.example:8090", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("", 403),
    ],
)
async def test_only_known_names_are_answered_without_a_token(host: str, status: int) -> None:
    async with client(hostnames=("console.example",)) as asking:
        assert (await asking.get("/", headers={"host": host})).status_code == status


@pytest.mark.parametrize(
    ("authorization", "status"),
    [("Bearer secret", 200), ("bearer secret ", 200), ("Bearer secre", 401), ("Basic secret", 401), ("", 401)],
)
async def test_the_api_requires_the_token_whatever_the_host(authorization: str, status: int) -> None:
    headers = {"host": "any.example", "authorization": authorization}
    async with client(token="secret") as asking:
        answer = await asking.post("/api/length", content=b"12", headers=headers)
        assert answer.status_code == status
        assert (await asking.get("/", headers={"host": "any.example"})).status_code == 200


async def test_bodies_have_a_limit_announced_or_not() -> None:
    async def pieces() -> object:
        for _ in range(11):
            yield b"x" * 10

    async with client() as asking:
        assert (await asking.post("/api/length", content=b"x" * 100)).json() == 100
        assert (await asking.post("/api/length", content=b"x" * 101)).status_code == 413
        assert (await asking.post("/api/length", content=pieces())).status_code == 413  # type: ignore[arg-type]
        for wrong in ("0" * 5000 + "1", "²", "-1"):
            length = {b"content-length": wrong.encode("latin-1")}
            assert (await asking.post("/api/length", content=b"x", headers=length)).status_code == 413


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"sec-fetch-site": "cross-site"}, 403), ({"sec-fetch-site": "same-origin"}, 200), ({}, 200)],
)
async def test_other_sites_cant_have_a_browser_ask(headers: Mapping[str, str], status: int) -> None:
    async with client() as asking:
        assert (await asking.post("/api/length", headers=headers)).status_code == status


async def test_every_answer_says_what_browsers_may_do_with_it() -> None:
    async with client() as asking:
        for answer in (await asking.get("/"), await asking.get("/nowhere"), await asking.post("/api/length")):
            assert answer.headers["content-security-policy"] == POLICY
            assert "unsafe" not in POLICY
        assert (await asking.post("/api/length")).headers["cache-control"] == "no-store"


@pytest.mark.parametrize("token", ["grün", "two\nlines", " padded", "tab\t", "\x7f"])
def test_a_token_that_no_header_can_carry_is_refused_at_the_start(token: str) -> None:
    with pytest.raises(Invalid, match="--console-token: printable ASCII") as refused:
        ConsoleService(ConsoleSettings(nats_url=("nats://127.0.0.1:1",), console_token=token))
    assert token not in str(refused.value)
