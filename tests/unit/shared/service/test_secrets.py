"""Passwords and tokens are in no message, however they were mistyped."""

import pytest

from shared.bus.connection import Bus
from shared.bus.options import HIDDEN, login_of, without_secrets
from shared.config.problems import Invalid
from shared.service.bus import make_bus
from shared.service.settings import CommonSettings, parse

PARTS = ("pa55", "w0rd", "12345", "67890")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nats-url", "nats://u:pa55,w0rd@host:4222"], "in a password a comma is written %2C"),
        (["--nats-url", "nats://u:12345,67890@host:4222"], "1 of 2 URLs have a user; all have one, or none"),
        (["--nats-url", "u:12345,67890@host"], "1 of 2 URLs have a user; all have one, or none"),
        (["--nats-url", "nats://pa55,w0rd@host"], "1 of 2 URLs have a user; all have one, or none"),
        (["--nats-url", "nats://u:pa55/w0rd@host"], "is no URL of a NATS server"),
        (["--nats-url", "nats://u:12345/67890@host"], "is no URL of a NATS server"),
        (["--nats-url", "nats://u:12345#67890@host"], "is no URL of a NATS server"),
        (["--nats-url", "http://u:pa55w0rd@host"], "'http://host' is no URL of a NATS server"),
        (
            ["--nats-user", "u", "--nats-password", "pa55", "w0rd"],
            "--nats-password: an unknown flag behind it, or a part of",
        ),
        (["--nats-user", "u", "--nats-password", "--w0rd=12345"], "--nats-password: a value is missing"),
        (["--nats-token", "pa55", "--admn-port", "1"], "--admn-port: unknown flag; did you mean '--admin-port'?"),
        (["--nats-token", "pa55", "-w0rd", "12345"], "--nats-token: an unknown flag behind it, or a part of its value"),
    ],
)
def test_no_problem_shows_a_part_of_a_password(argv: list[str], message: str) -> None:
    with pytest.raises(Invalid) as refused:
        parse(CommonSettings, argv, {}, "test")
    assert message in str(refused.value)
    assert not [part for part in PARTS if part in str(refused.value)]


def test_neither_settings_nor_the_bus_show_them() -> None:
    argv = ["--nats-url", "nats://u:pa55%2Cw0rd@host"]
    settings = parse(CommonSettings, argv, {}, "test")
    bus, _, _ = make_bus(settings, "picker", "x")
    others = parse(CommonSettings, ["--nats-token", "12345"], {"POINTSMAN_NATS_PASSWORD": ""}, "test")
    shown = f"{settings!r} {others!r} {bus!r} {bus.readiness()}"
    assert "host" in shown
    assert not [part for part in PARTS if part in shown]


@pytest.mark.parametrize(
    ("server", "shown"),
    [
        ("nats://host:4222", "nats://host:4222"),
        ("host", "host"),
        ("nats://u:p@host:4222", "nats://host:4222"),
        ("t@host", "host"),
        ("tls://u:p@[::1]:4222", "tls://[::1]:4222"),
        ("nats://u:p@x@host", "nats://host"),
        ("nats://u:p", HIDDEN),
        ("nats://[::1", HIDDEN),
    ],
)
def test_a_url_is_shown_without_its_user(server: str, shown: str) -> None:
    assert without_secrets(server) == shown


@pytest.mark.parametrize(
    ("server", "login"),
    [
        ("nats://host", (None, None, None)),
        ("nats://u:p%2Cq@host", ("u", "p,q", None)),
        ("nats://t%40@host", (None, None, "t@")),
        ("nats://u:@host", ("u", "", None)),
    ],
)
def test_a_url_may_have_a_user_with_a_password_or_a_token(
    server: str, login: tuple[str | None, str | None, str | None]
) -> None:
    assert login_of(server) == login
    assert Bus(server, name="test").servers == (server,)
