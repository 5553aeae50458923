from shared.service.readiness import Phase, Readiness


def test_every_condition_that_doesnt_hold_gives_its_reason() -> None:
    reasons: dict[str, str | None] = {"view": "no endpoints yet", "bus": None, "port": "taken"}
    readiness = Readiness()
    for name in reasons:
        readiness.require(name, lambda name=name: reasons[name])  # type: ignore[misc]  # a default binds the name
    assert readiness.reasons() == {"view": "no endpoints yet", "port": "taken"}
    reasons.update(view=None, port=None)
    assert readiness.ready


def test_a_process_that_starts_or_stops_is_not_ready_whatever_its_conditions_say() -> None:
    readiness = Readiness(Phase.STARTING)
    readiness.require("view", lambda: None)
    assert readiness.reasons() == {"process": "the process is starting"}
    readiness.phase = Phase.SERVING
    assert readiness.ready
    readiness.phase = Phase.STOPPING
    assert readiness.reasons() == {"process": "the process is stopping"}


def test_a_note_is_told_while_it_holds_and_stands_in_nobodys_way() -> None:
    amiss: list[str | None] = ["the last good configuration holds", None]
    readiness = Readiness()
    readiness.mention("configuration", lambda: amiss[0])
    assert readiness.ready
    assert readiness.notes() == {"configuration": "the last good configuration holds"}
    amiss.pop(0)
    assert readiness.notes() == {}
