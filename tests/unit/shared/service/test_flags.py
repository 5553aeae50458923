import pytest
from msgspec import inspect

from shared.config.problems import Problems
from shared.service.flags import read_flags, wants_help

KINDS = {
    "stale_after": inspect.FloatType(),
    "pool_name": inspect.StrType(),
    "nats_url": inspect.VarTupleType(inspect.StrType()),
    "secure_serving": inspect.BoolType(),
}


def read(*argv: str) -> tuple[dict[str, list[str]], list[str]]:
    problems = Problems()
    return read_flags(argv, KINDS, problems), [str(error) for error in problems.errors]


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        ([], {}),
        (["--pool-name", "a"], {"pool_name": ["a"]}),
        (["--pool-name=a"], {"pool_name": ["a"]}),
        (["--pool-name="], {"pool_name": [""]}),
        (["--pool-name", "a=b"], {"pool_name": ["a=b"]}),
        (["--pool-name=a=b"], {"pool_name": ["a=b"]}),
        (["--pool-name", "-a"], {"pool_name": ["-a"]}),
        (["--stale-after", "-5s"], {"stale_after": ["-5s"]}),
        (["--nats-url", "a,b", "--nats-url=c"], {"nats_url": ["a,b", "c"]}),
        (["--secure-serving"], {"secure_serving": ["true"]}),
        (["--secure-serving", "--pool-name", "a"], {"secure_serving": ["true"], "pool_name": ["a"]}),
        (["--secure-serving=false"], {"secure_serving": ["false"]}),
        (["--secure-serving", "false"], {"secure_serving": ["false"]}),
        (["--secure-serving", "FALSE"], {"secure_serving": ["FALSE"]}),
        (["--secure-serving=maybe"], {"secure_serving": ["maybe"]}),
    ],
)
def test_a_flag_gives_its_setting_a_text(argv: list[str], given: dict[str, list[str]]) -> None:
    assert read(*argv) == (given, [])


@pytest.mark.parametrize(
    ("argv", "given", "warnings"),
    [
        (["--queue-metric", "m"], ["m"], []),
        (["--waiting-metric=m"], ["m"], []),
        (["--queueMetric", "m"], ["m"], []),
        (["-queueMetric", "m"], ["m"], []),
        (["-queueMetric=m"], ["m"], []),
        (["-waiting-metric=m"], None, ["-waiting-metric: unknown flag; did you mean '--waiting-metric'?"]),
    ],
)
def test_an_alias_means_the_same_flag(argv: list[str], given: list[str] | None, warnings: list[str]) -> None:
    """In camel case with one dash too, as programs write it that use Go's flag package."""
    problems, aliases = Problems(), {"queue_metric": ("--waiting-metric", "--queueMetric")}
    found = read_flags(argv, {"queue_metric": inspect.StrType()}, problems, aliases)
    assert (found.get("queue_metric"), [str(error) for error in problems.errors]) == (given, warnings)


def test_every_mistake_is_named_and_the_sound_flags_are_read() -> None:
    given, problems = read(
        *("--pol-name", "a", "--pool_name=b", "-pool-name", "c", "--zebra", "stray", "--stale-after"),
        *("--nats-url", "--secure-serving", "maybe", "--pool-name", "d"),
    )
    assert given == {"secure_serving": ["true"], "pool_name": ["d"]}
    assert problems == [
        "--pol-name: unknown flag; did you mean '--pool-name'?",
        "--pool_name: unknown flag; did you mean '--pool-name'?",
        "-pool-name: unknown flag; did you mean '--pool-name'?",
        "--zebra: unknown flag",
        "--stale-after: a value is missing: --stale-after VALUE",
        "--nats-url: a value is missing: --nats-url VALUE",
        "maybe: unexpected argument 'maybe'; settings are given as --name value",
    ]


@pytest.mark.parametrize(("argv", "wanted"), [(["-h"], True), (["--zebra", "--help"], True), (["--helpful"], False)])
def test_help_is_asked_for_anywhere(argv: list[str], wanted: bool) -> None:
    assert wants_help(argv) is wanted
