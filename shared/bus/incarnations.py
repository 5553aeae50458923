"""Refuses messages that a process publishes under the id of another process of its tier.

A login is for a tier, so NATS can't refuse a picker's message under another picker's id. But each sender draws a number
when it starts, its run. While a run sends messages, messages of another run under the same id come from another
process. If a forger repeats the right run, the owner of the id notices it (`shared.bus.duplicate_id`).
"""

from collections.abc import Callable
from typing import TypeVar

from msgspec import Struct

from shared.bus.codec import MalformedLog, SenderLog
from shared.bus.heartbeat import EXPIRY
from shared.bus.messages import Message
from shared.bus.subjects import Subjects
from shared.limits import LIMITS

M = TypeVar("M", bound=Message)


def sender_mismatch(subject: str, sender: str, position: int = -1) -> str | None:
    """What is wrong with a message whose subject names another sender than its content; None if both agree."""
    expected = Subjects.sender(subject, position)
    return None if sender == expected else f"it claims to be from {sender!r}"


def decode_verified(
    kind: type[M], data: bytes, subject: str, log: MalformedLog, sender_of: Callable[[M], str], position: int = -1
) -> M | None:
    """A message of the sender that its subject names; None, after it was counted, for one that can't be read or is from
    another sender."""
    expected = Subjects.sender(subject, position)
    message = log.decode(kind, data, subject, expected)
    if message is not None and (problem := sender_mismatch(subject, sender_of(message), position)):
        log.conflicting.report(expected, problem, subject=subject)
        return None
    return message


class _Known(Struct):
    run: int
    last_seen: float


class Incarnations:
    """The run of each sender of a kind of message, from its first message until it leaves or has been silent for
    `EXPIRY`. Beyond `limit`, new senders are refused until others are silent. Refused messages are counted in `log`."""

    def __init__(self, log: SenderLog, limit: int = LIMITS.max_senders) -> None:
        self._log = log
        self._limit = limit
        self._known: dict[str, _Known] = {}

    def accepts(self, subject: str, sender: str, run: int, now: float, *, leaving: bool = False) -> bool:
        """Whether a message is from the sender that its subject names. `leaving`: it is the sender's last one."""
        problem = sender_mismatch(subject, sender) or self._conflict(sender, run, now)
        if problem:
            self._log.report(Subjects.sender(subject), problem, subject=subject)
            return False
        if leaving:
            self.forget(sender)
        else:
            self._known[sender] = _Known(run, now)
        return True

    def forget(self, sender: str) -> None:
        """The sender has left: the next one with its id is another run of it."""
        self._known.pop(sender, None)

    def _conflict(self, sender: str, run: int, now: float) -> str | None:
        known = self._known.get(sender)
        if known is not None:
            if known.run == run or now - known.last_seen >= EXPIRY:
                return None
            return "two senders have this id: another one was here first and is still there"
        if len(self._known) >= self._limit:
            self._known = {id: known for id, known in self._known.items() if now - known.last_seen < EXPIRY}
        return None if len(self._known) < self._limit else f"{self._limit} senders are there already"

    def __repr__(self) -> str:
        return f"<Incarnations of {len(self._known)} senders>"
