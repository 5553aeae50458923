"""What a picker's settings say together."""

import pytest

from services.picker.parsers.json_body import MAX_NAME
from services.picker.settings.picker import PickerSettings
from shared.config import Invalid
from shared.service.settings import parse


def read(*argv: str, **environ: str) -> PickerSettings:
    return parse(PickerSettings, argv, environ, "pointsman picker")


def problems(*argv: str, **environ: str) -> list[str]:
    with pytest.raises(Invalid) as caught:
        read(*argv, **environ)
    return caught.value.lines()


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (("--drain-timeout", "2s"), "a delay of 2s leaves nothing of 2s for open streams"),
        (("--drain-timeout", "0"), "a delay of 2s leaves nothing of 0s for open streams"),
        (("--drain-delay", "45s"), "a delay of 45s leaves nothing of 30s for open streams"),
    ],
)
def test_a_drain_leaves_the_open_streams_time_after_the_delay(argv: tuple[str, ...], problem: str) -> None:
    assert problems(*argv) == [f"--drain-timeout and --drain-delay: {problem}; set a longer timeout or a shorter delay"]


def test_the_problem_names_where_the_values_are_from() -> None:
    [problem] = problems("--drain-timeout", "1s", POINTSMAN_DRAIN_DELAY="5s")
    assert problem.startswith("--drain-timeout and POINTSMAN_DRAIN_DELAY: a delay of 5s ")


def test_without_a_delay_any_time_out_will_do_also_none() -> None:
    settings = read("--drain-delay", "0s", "--drain-timeout", "0s")
    assert (settings.drain_delay, settings.drain_timeout) == (0.0, 0.0)
    assert read("--drain-timeout", "2.1s").drain_timeout == 2.1


def test_what_is_wrong_by_itself_is_told_by_itself() -> None:
    assert [line.split(":")[0] for line in problems("--drain-timeout", "soon", "--drain-delay", "45s")] == [
        "--drain-timeout"
    ]


def test_what_every_tier_checks_is_checked() -> None:
    assert problems("--nats-user", "u") == ["--nats-user and --nats-password: one is given without the other"]


def test_a_body_as_large_as_may_be_has_to_find_room() -> None:
    assert problems("--max-request-body", "1G") == [
        "--max-held-bodies and --max-request-body: 536870912 bytes for all bodies together don't hold one of "
        "1000000000; at least as many are needed"
    ]
    assert read("--max-request-body", "1G", "--max-held-bodies", "1G").max_held_bodies == 10**9


def test_a_model_name_may_be_as_long_as_parsers_read_it() -> None:
    assert read("--max-model-name", "64Ki").max_model_name == MAX_NAME
    assert problems("--max-model-name", str(MAX_NAME + 1)) == ["--max-model-name: '65537' is above 65536"]
