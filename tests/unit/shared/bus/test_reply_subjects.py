"""Requests are answered in inboxes, and nowhere else."""

import pytest
from nats.aio.msg import Msg

from shared.bus.codec import MalformedLog
from shared.bus.connection import Bus
from shared.bus.reply_subjects import is_answerable
from shared.bus.subjects import READER, Subjects

S = Subjects("second")


@pytest.mark.parametrize(
    ("reply", "answerable"),
    [
        ("_R_.AbCdEf.uVwXyZ", True),
        ("_INBOX.x.1", True),
        ("_INBOX_second_reader.x.1", True),
        ("_GR_.abcdef.ghijkl._INBOX_second_reader.x.1", True),
        ("_INBOX_second_watcher.x.1", False),
        ("_INBOX_second_reader", False),
        ("_GR_.abcdef.ghijkl.$KV.leases.watcher", False),
        ("_GR_.abcdef", False),
        ("$KV.second_leases.watcher", False),
        ("$JS.API.STREAM.DELETE.KV_second_endpoints", False),
    ],
)
def test_only_an_inbox_that_the_asker_may_have_gets_an_answer(reply: str, answerable: bool) -> None:
    log = MalformedLog(lambda: 5.0)
    message = Msg(Bus("nats://127.0.0.1:1", name="test"), "asked", reply, b"")  # type: ignore[arg-type]
    assert is_answerable(message, S, READER, log) == answerable
    assert log.total == (not answerable)
    assert answerable or repr(reply) in (log.note() or "")


def test_a_message_that_wants_no_answer_is_no_fault() -> None:
    log = MalformedLog(lambda: 5.0)
    message = Msg(Bus("nats://127.0.0.1:1", name="test"), "asked", "", b"")  # type: ignore[arg-type]
    assert not is_answerable(message, S, READER, log)
    assert log.total == 0
