from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from shared.plugin_failures import SHOWN, PluginFailures, Withheld, reason_of
from shared.recent_events import INTERVAL


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_plugin_is_logged_once_a_minute_with_what_it_failed_on_and_how_often() -> None:
    clock = Clock()
    failures = PluginFailures(clock)
    with capture_logs() as logs:
        for number in range(5):
            failures.record("bad", KeyError("gpu"), request_id=f"r{number}")
        failures.record("other", "its scores are NaN", request_id="r9")
        clock.now += INTERVAL
        failures.record("bad", ValueError("no"), request_id="r5")
    logged = [(line["plugin"], line["request_id"], line["reason"], line["since_last_line"]) for line in logs]
    assert logged == [
        ("bad", "r0", "KeyError: 'gpu'", 1),
        ("other", "r9", "its scores are NaN", 1),
        ("bad", "r5", "ValueError: no", 5),
    ]


def test_the_log_says_where_a_plugin_raised_and_of_the_text_no_more_than_the_reason_has() -> None:
    def broken(depth: int) -> None:
        if depth:
            broken(depth - 1)
        raise ValueError("x" * 10_000)

    with capture_logs() as logs:
        try:
            broken(50)
        except ValueError as error:
            PluginFailures(Clock()).record("bad", error)
    (line,) = logs
    assert len(line.pop("reason")) == SHOWN
    assert "in broken" in line["exception"]
    assert "xxx" not in str(line)
    assert len(line["exception"]) < 5_000


def test_of_an_exception_that_is_withheld_only_the_type_and_the_place_are_told() -> None:
    with capture_logs() as logs:
        try:
            int("my secret")
        except ValueError as error:
            PluginFailures(Clock()).record("bad", Withheld(error))
    (line,) = logs
    assert line["reason"] == "ValueError"
    assert __file__ in line["exception"]


def test_readyz_mentions_a_plugin_until_it_has_been_well_for_a_minute() -> None:
    clock = Clock()
    failures = PluginFailures(clock)
    failures.follow("pool", ["good"])
    assert failures.note() is None
    failures.record("bad", ValueError("no"))
    clock.now += 12
    failures.record("bad", ValueError("never"))
    clock.now += 3
    assert failures.note() == "plugin 'bad' has failed 2 times, 3 s ago with: ValueError: never"
    clock.now += INTERVAL
    assert failures.note() is None
    assert failures.counts() == {"good": 0, "bad": 2}


def test_failures_are_counted_by_plugin_and_there_at_0_from_the_start() -> None:
    registry = CollectorRegistry()
    failures = PluginFailures(Clock())
    registry.register(failures)
    failures.follow("pool", ["good"])
    failures.record("bad", "wrong")
    failures.record("bad", "wrong")
    values = [
        registry.get_sample_value("pointsman_plugin_failures_total", {"plugin": name}) for name in ("good", "bad")
    ]
    assert values == [0, 2]


def test_a_count_ends_with_the_last_configuration_that_has_the_plugin() -> None:
    failures = PluginFailures(Clock())
    failures.follow("pool", ["kept", "dropped", "shared"])
    failures.follow("other pool", ["shared"])
    for name in ("kept", "dropped", "shared"):
        failures.record(name, "wrong")
    failures.follow("pool", ["new", "kept"])
    assert failures.counts() == {"new": 0, "kept": 1, "shared": 1}
    failures.record("dropped", "wrong: a late request of the former configuration")
    for number in range(10):
        failures.follow("pool", [f"renamed-{number}"])
    assert failures.counts() == {"renamed-9": 0, "shared": 1}


def test_an_exception_that_has_no_text_of_its_own_is_told_by_its_type() -> None:
    class Strange(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert reason_of(Strange()) == "Strange"
    assert reason_of(ValueError()) == "ValueError"
    assert len(reason_of(ValueError("x" * 10_000))) == SHOWN
