import asyncio

from services.picker.bus.pace import BURST, Pace


def test_some_messages_follow_each_other_at_once_and_then_one_an_interval() -> None:
    pace, now = Pace(0.02), 100.0
    sent: list[float] = []
    while now < 101.0:
        if not pace.wait(now):
            pace.sent(now)
            sent.append(now)
        now += 0.001
    assert sent[BURST - 1] < 100.01
    assert len(sent) <= BURST + 50


def test_after_a_quiet_time_there_is_room_for_as_many_again_and_no_more() -> None:
    pace = Pace(0.02)
    for now in (0.0, 10.0):
        for _ in range(BURST):
            assert pace.wait(now) == 0
            pace.sent(now)
        assert 0 < pace.wait(now) < 0.021


async def test_a_turn_comes_at_once_when_there_is_something_to_tell_and_after_an_interval_otherwise() -> None:
    pace = Pace(60.0)
    turn = asyncio.ensure_future(pace.turn(0.0))
    await asyncio.sleep(0)
    assert not turn.done()
    pace.wake()
    await turn
    await Pace(0.001).turn(0.0)


async def test_when_too_much_was_sent_a_wake_waits() -> None:
    pace = Pace(0.001)
    for _ in range(10):
        pace.sent(5.0)
    pace.wake()
    await pace.turn(5.0)
    assert pace.wait(5.0 + 10 * 0.001) == 0
