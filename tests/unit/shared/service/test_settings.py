from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from shared.config.problems import Invalid
from shared.quantities import Duration, PositiveDuration, Size
from shared.service.settings import CommonSettings, describe, misspelled, parse, read_text, service_variables


class Settings(CommonSettings, frozen=True, kw_only=True):
    """Settings of every kind."""

    interval: Annotated[PositiveDuration, Meta(description="time between two looks")] = 0.1
    limit: Annotated[Size, Meta(description="bytes at most")] = 2**20
    share: Annotated[float, Meta(ge=0, le=1, description="a share; 50% is 0.5")] = 0.5
    seed: Annotated[int | None, Meta(description="of random numbers")] = None
    ports: Annotated[tuple[int, ...], Meta(description="ports")] = ()
    mode: Annotated[Literal["lean", "full"], Meta(description="how")] = "lean"
    secure_serving: Annotated[bool, Meta(description="with TLS")] = True
    grace: Duration | None = None
    metric: Annotated[
        str | None, Meta(description="a metric's name", extra={"aliases": ("--family", "--metricName")})
    ] = None

    def __post_init__(self) -> None:
        if self.mode == "full" and self.seed is not None:
            raise ValueError("--seed: not in full mode")


class Needy(CommonSettings, frozen=True, kw_only=True):
    """Has a setting without a default."""

    endpoints_file: Annotated[str, Meta(min_length=1, description="endpoints")]


def read(*argv: str, **environ: str) -> Settings:
    return parse(Settings, argv, environ, "pointsman test")


def problems(*argv: str, **environ: str) -> list[str]:
    with pytest.raises(Invalid) as caught:
        read(*argv, **environ)
    return caught.value.lines()


def test_a_flag_goes_before_the_environment_and_that_before_the_default() -> None:
    assert read().pool_name == "default"
    assert read(POINTSMAN_POOL_NAME="a").pool_name == "a"
    assert read("--pool-name", "b", POINTSMAN_POOL_NAME="a").pool_name == "b"
    assert read("--secure-serving", POINTSMAN_SECURE_SERVING="false").secure_serving is True
    assert read("--ports", "1,2", "--ports=3", POINTSMAN_PORTS="9").ports == (1, 2, 3)
    assert read("--pool-name", "a", "--pool-name=b").pool_name == "b"


def test_an_empty_variable_is_one_that_isnt_set() -> None:
    """Compose files and manifests pass variables on that may be empty."""
    assert read(POINTSMAN_ADMIN_PORT="", POINTSMAN_POOL_NAME="") == Settings()


def test_an_empty_flag_is_an_empty_text() -> None:
    assert problems("--pool-name", "") == ["--pool-name: '' is empty"]
    assert read("--id=").id == ""


@pytest.mark.parametrize(
    "argv", ["--family m", "--metricName=m", "-metricName m", "--metric a --metricName b --family m"]
)
def test_a_setting_can_be_given_under_the_names_that_other_programs_have_for_it_and_the_last_counts(argv: str) -> None:
    assert read(*argv.split(), POINTSMAN_METRIC="n").metric == "m"


def test_a_setting_that_isnt_given_is_told_from_an_empty_one() -> None:
    assert (read().metric, read("--metric", "").metric, read("--metricName=").metric) == (None, "", "")


@pytest.mark.parametrize(
    ("flag", "text", "field", "value"),
    [
        ("--interval", "200ms", "interval", 0.2),
        ("--interval", "2", "interval", 2.0),
        ("--grace", "1m30s", "grace", 90.0),
        ("--limit", "64Ki", "limit", 65536),
        ("--limit", "4096", "limit", 4096),
        ("--share", "1", "share", 1.0),
        ("--seed", "7", "seed", 7),
        ("--ports", "1,2", "ports", (1, 2)),
        ("--nats-url", "nats://a:1, nats://b:2", "nats_url", ("nats://a:1", "nats://b:2")),
        ("--mode", "full", "mode", "full"),
        ("--secure-serving", "false", "secure_serving", False),
        ("--secure-serving", "no", "secure_serving", False),
        ("--secure-serving", "0", "secure_serving", False),
        ("--secure-serving", "TRUE", "secure_serving", True),
        ("--admin-port", "0", "admin_port", 0),
    ],
)
def test_flag_and_variable_are_read_alike(flag: str, text: str, field: str, value: object) -> None:
    variable = "POINTSMAN_" + flag.removeprefix("--").replace("-", "_").upper()
    assert getattr(read(flag, text), field) == value
    assert getattr(read(f"{flag}={text}"), field) == value
    assert getattr(read(**{variable: text}), field) == value


def test_every_problem_is_told_at_once_by_its_source() -> None:
    assert problems(
        *("--interval", "0s", "--limit", "-1", "--share", "nan", "--seed", "x", "--ports", "1,b", "--mod", "full"),
        *("--secure-serving=maybe", "--grace", "-5s", "--nats-url", ","),
        POINTSMAN_ADMIN_PORT="70000",
        POINTSMAN_LOG_LEVEL="loud",
        POINTSMAN_DRAIN_TIMEOUT="soon",
    ) == [
        "--mod: unknown flag; did you mean '--mode'?",
        "--nats-url: no items; at least 1 is expected",
        "POINTSMAN_ADMIN_PORT: 70000 is above 65535",
        "POINTSMAN_LOG_LEVEL: 'loud' isn't one of 'debug', 'error', 'info', 'warning'",
        "POINTSMAN_DRAIN_TIMEOUT: 'soon': a duration such as 200ms, 2s or 1m30s is expected",
        "--interval: '0s' is not above 0",
        "--limit: '-1' is negative",
        "--share: nan is not a finite number",
        "--seed: 'x' isn't a whole number",
        "--ports[1]: 'b' is a string; a whole number is expected",
        "--secure-serving: 'maybe' isn't true or false",
        "--grace: '-5s' is negative",
    ]


def test_nats_settings_are_checked_with_the_rest_and_each_wrong_server_is_told() -> None:
    assert problems(
        *("--admin-port", "x", "--nats-url", "http://u:secret@a,nats://fine:4222,b:0", "--nats-prefix", "a.b"),
        POINTSMAN_NATS_USER="u",
    ) == [
        "--admin-port: 'x' isn't a whole number",
        "--nats-url: 'http://a' is no URL of a NATS server; nats://host:4222 would be one",
        "--nats-url: 'b:0' is no URL of a NATS server; nats://host:4222 would be one",
        "--nats-url: 1 of 3 URLs have a user; all have one, or none; in a password a comma is written %2C, an @ %40, "
        "a colon %3A and a slash %2F",
        "--nats-prefix: 'a.b': letters, digits, - and _ are allowed, and at least one of them",
        "POINTSMAN_NATS_USER and --nats-password: one is given without the other",
    ]


@pytest.mark.parametrize(
    ("argv", "environ", "problem"),
    [
        (
            ["--nats-credentials", "u.creds"],
            {"POINTSMAN_NATS_TOKEN": "t"},
            "--nats-credentials and POINTSMAN_NATS_TOKEN: only one of them can be used",
        ),
        (["--nats-password", "p", "--nats-user"], {}, "--nats-user: a value is missing: --nats-user VALUE"),
        (["--mode", "full", "--seed", "1"], {}, "--seed: not in full mode"),
    ],
    ids=["two ways to log in", "one that has a problem gets no second one", "what settings say together"],
)
def test_settings_have_to_fit_together(argv: list[str], environ: dict[str, str], problem: str) -> None:
    assert problems(*argv, **environ) == [problem]


def test_a_setting_without_a_default_is_required() -> None:
    with pytest.raises(Invalid) as caught:
        parse(Needy, ["--admin-port", "x"], {}, "test")
    assert caught.value.lines() == [
        "--admin-port: 'x' isn't a whole number",
        "--endpoints-file: required, and missing (or set POINTSMAN_ENDPOINTS_FILE)",
    ]
    assert parse(Needy, [], {"POINTSMAN_ENDPOINTS_FILE": "e.yaml"}, "test").endpoints_file == "e.yaml"
    with pytest.raises(Invalid) as caught:
        parse(Needy, ["--endpoints-file"], {}, "test")
    assert caught.value.lines() == ["--endpoints-file: a value is missing: --endpoints-file VALUE"]


def test_every_common_setting_is_described() -> None:
    assert all(description for _, _, _, description in describe(CommonSettings))


def test_help_shows_every_setting_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read("--zebra", "--help")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: pointsman test [--flag VALUE …]\n\nSettings of every kind.\n\ncommon flags:\n")
    for flag, variable, _, description in describe(Settings):
        assert f"  {flag} " in text
        assert " ".join(description.split()) in " ".join(text.split())
        assert variable == "POINTSMAN_" + flag[2:].replace("-", "_").upper()
    assert "--interval DURATION\n      time between two looks; default: 100ms\n" in text
    assert "--metric TEXT\n      a metric's name (also --family, --metricName)\n" in text
    assert "--secure-serving [true|false]\n      with TLS; default: true\n" in text
    assert text.index("common flags:") < text.index("--pool-name") < text.index("\nflags:") < text.index("--interval")
    assert max(map(len, text.splitlines())) <= 100
    with pytest.raises(SystemExit):
        parse(Needy, ["-h"], {}, "test")
    assert "--endpoints-file TEXT\n      endpoints; required\n" in capsys.readouterr().out


class Files(Struct, frozen=True, kw_only=True):
    """Reads files."""

    files: Annotated[tuple[str, ...], Meta(min_length=1, description="what to read", extra={"argument": "FILE"})]
    deep: Annotated[bool, Meta(description="directories in it, too")] = False


def test_an_argument_has_no_flag_and_no_variable(capsys: pytest.CaptureFixture[str]) -> None:
    environ = {"POINTSMAN_FILES": "x", "POINTSMAN_DEEP": "true"}
    assert parse(Files, ["a,b", "--deep", "-"], environ, "test") == Files(files=("a,b", "-"), deep=True)
    assert parse(Files, ["a"], None, "test") == Files(files=("a",))
    with pytest.raises(Invalid) as caught:
        parse(Files, ["--files", "x", "--depe"], environ, "test")
    assert [str(problem) for problem in caught.value.problems] == [
        "--files: unknown flag",
        "--depe: unknown flag; did you mean '--deep'?",
        "FILE: required, and missing",
    ]
    with pytest.raises(SystemExit):
        parse(Files, ["-h"], None, "test")
    text = capsys.readouterr().out
    assert text.startswith(
        "usage: test [--flag VALUE …] FILE\n\nReads files.\n\narguments:\n  FILE\n      what to read\n"
    )
    assert "environment" not in text


def test_a_default_that_is_shown_gives_the_default() -> None:
    argv = [f"{flag}={default}" for flag, _, default, _ in describe(Settings) if default]
    assert read(*argv) == Settings()


def test_a_variable_that_is_almost_a_settings_is_suspicious() -> None:
    environ = {"POINTSMAN_ADMIN_PROT": "1", "POINTSMAN_INTERVALL": "1s", "POINTSMAN_POOL_NAME": "a", "PATH": "/"}
    assert misspelled(Settings, environ) == [
        ("POINTSMAN_ADMIN_PROT", "POINTSMAN_ADMIN_PORT"),
        ("POINTSMAN_INTERVALL", "POINTSMAN_INTERVAL"),
    ]


@pytest.mark.parametrize(
    "name", ["POINTSMAN_FIXTURES", "POINTSMAN_GRPC_PORT", "POINTSMAN_ENDPOINTS_FILE", "POINTSMAN_"]
)
def test_a_variable_of_something_else_is_not(name: str) -> None:
    assert misspelled(CommonSettings, {name: "x"}) == []


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:9090", "udp://10.0.0.1:9090", "sctp://10.0.0.1:9090"])
def test_the_variable_of_a_kubernetes_service_is_no_setting(address: str) -> None:
    """A Service named pointsman-admin puts it into every pod of the namespace."""
    environ = {"POINTSMAN_ADMIN_PORT": address, "POINTSMAN_SEED": address, "POINTSMAN_ID": address}
    settings = read(**environ)
    assert (settings.admin_port, settings.seed, settings.id) == (9090, None, address)
    assert service_variables(Settings, environ) == ["POINTSMAN_ADMIN_PORT", "POINTSMAN_SEED"]
    assert read("--admin-port", "1", **environ).admin_port == 1


def test_an_address_as_a_flag_and_other_texts_as_a_variable_are_mistakes() -> None:
    assert problems("--admin-port", "tcp://10.0.0.1:9090") == [
        "--admin-port: 'tcp://10.0.0.1:9090' isn't a whole number"
    ]
    assert problems(POINTSMAN_ADMIN_PORT="http://a") == ["POINTSMAN_ADMIN_PORT: 'http://a' isn't a whole number"]
    assert service_variables(Settings, {"POINTSMAN_ADMIN_PORT": "9090"}) == []


def test_the_text_of_a_file_keeps_its_ends_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_bytes("a: 1\r\nb: größer\r".encode())
    assert read_text(str(path), "--config-file") == "a: 1\r\nb: größer\r"


def test_a_file_that_cant_be_read_is_named_with_its_flag(tmp_path: Path) -> None:
    path = tmp_path / "missing.yaml"
    with pytest.raises(Invalid, match=f"--config-file: '{path}' can't be read: No such file or directory"):
        read_text(str(path), "--config-file")
    path.write_bytes(b"a: \xff")
    with pytest.raises(Invalid, match="isn't UTF-8 text: invalid start byte at byte 3"):
        read_text(str(path), "--config-file")


def test_what_isnt_utf_8_is_no_value() -> None:
    assert problems("--id", "a\udcff", POINTSMAN_POOL_NAME="\udcff") == [
        r"POINTSMAN_POOL_NAME: '\udcff' isn't UTF-8 text",
        r"--id: 'a\udcff' isn't UTF-8 text",
    ]


def test_nor_is_such_a_secret_shown() -> None:
    assert problems("--nats-url", "nats://u:geheim@h/\udcff", POINTSMAN_NATS_PASSWORD="geheim\udcff") == [
        "--nats-url: its value isn't UTF-8 text",
        "POINTSMAN_NATS_PASSWORD: its value isn't UTF-8 text",
    ]
