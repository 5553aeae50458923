"""Metrics that plugins read and that servers have ceased to report are told of."""

from services.picker.state.vanished import VanishedAttributes
from services.picker.state.view import View
from shared.attributes import ACTIVE_MODELS, KV_CACHE_USAGE, WAITING_QUEUE_SIZE
from tests.unit.services.picker.world import NOW, endpoint, facts, frame, pool, report

QUEUE, USAGE = WAITING_QUEUE_SIZE, KV_CACHE_USAGE
READ = {QUEUE: ("queue-scorer", "utilization-detector"), USAGE: ("kv-scorer",)}
AFTER = 2.0


def check(vanished: VanishedAttributes, view: View, now: float) -> str | None:
    vanished.check(view.layout, view.columns, READ, now, AFTER)
    return vanished.problem()


def test_a_metric_that_no_scraped_server_reports_any_more_is_named_with_its_readers_and_since_when() -> None:
    view, vanished = pool("a1", "a2"), VanishedAttributes()
    report(view, {QUEUE: [1, 1], USAGE: [0.5, 0.5]})
    assert check(vanished, view, NOW) is None
    report(view, {USAGE: [0.5, 0.5]}, now=NOW + 10)
    assert check(vanished, view, NOW + 10) == (
        "attributes that no server reports any more: "
        "WaitingQueueSize/core-metrics-extractor, read by queue-scorer and utilization-detector, for 10 s"
    )
    report(view, {QUEUE: [1, None]}, now=NOW + 11)
    assert check(vanished, view, NOW + 11) is None


def test_what_no_server_ever_had_is_not_vanished() -> None:
    view = pool("a1")
    report(view, {QUEUE: [1]})
    assert check(VanishedAttributes(), view, NOW) is None


def test_servers_that_are_not_scraped_at_all_are_another_trouble() -> None:
    view, vanished = pool("a1"), VanishedAttributes()
    report(view, {QUEUE: [1], USAGE: [0.5]})
    check(vanished, view, NOW)
    assert check(vanished, view, NOW + 10) is None


def test_servers_that_replace_others_are_to_report_what_those_did() -> None:
    view, vanished = pool("a1"), VanishedAttributes()
    report(view, {QUEUE: [1], USAGE: [0.5]})
    check(vanished, view, NOW)
    view.reset(facts(endpoint("b1")))
    assert check(vanished, view, NOW + 1) is None
    report(view, {USAGE: [0.5]}, now=NOW + 1)
    assert "WaitingQueueSize" in str(check(vanished, view, NOW + 1))


def test_a_metric_is_forgotten_when_the_last_server_that_is_to_report_it_leaves() -> None:
    view, vanished = pool("a1", "b1"), VanishedAttributes()
    report(view, {QUEUE: [1, None], USAGE: [0.5, 0.5]})
    check(vanished, view, NOW)
    report(view, {USAGE: [0.5, 0.5]}, now=NOW + 10)
    assert "WaitingQueueSize" in str(check(vanished, view, NOW + 10))
    view.reset(facts(endpoint("b1")))
    assert check(vanished, view, NOW + 10) is None, "b1 never had it"
    view.reset(facts(endpoint("b1"), endpoint("b2")))
    report(view, {USAGE: [0.5, 0.5]}, now=NOW + 11)
    assert check(vanished, view, NOW + 11) is None, "nobody had it when b2 joined"


def test_a_server_that_joined_beside_one_that_reports_it_is_to_report_it_too() -> None:
    view, vanished = pool("a1"), VanishedAttributes()
    report(view, {QUEUE: [1], USAGE: [0.5]})
    check(vanished, view, NOW)
    view.reset(facts(endpoint("a1"), endpoint("b1")))
    report(view, {QUEUE: [1, None], USAGE: [0.5, 0.5]}, now=NOW + 1)
    check(vanished, view, NOW + 1)
    view.reset(facts(endpoint("b1")))
    assert "WaitingQueueSize" in str(check(vanished, view, NOW + 2)), "as in a rolling upgrade that renamed it"


def test_names_vanish_as_numbers_do() -> None:
    view, vanished = pool("a1"), VanishedAttributes()
    view.apply_frame(frame(["a1"], {ACTIVE_MODELS: [("tuned",)], QUEUE: [1]}), NOW, 0.0)
    read = {ACTIVE_MODELS: ("lora-affinity-scorer",)}
    vanished.check(view.layout, view.columns, read, NOW, AFTER)
    view.apply_frame(frame(["a1"], {QUEUE: [1]}), NOW + 5, 0.0)
    vanished.check(view.layout, view.columns, read, NOW + 5, AFTER)
    assert "ActiveModels/core-metrics-extractor, read by lora-affinity-scorer, for 5 s" in str(vanished.problem())
