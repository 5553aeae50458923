"""Where requests may want their answers: in inboxes.

nats-server checks the subject of a request, not the one that the request names for its answer. Whoever answers does so
with its own permissions, and would write what the requester can't.
"""

from nats.aio.msg import Msg

from shared.bus.codec import SHOWN, UNKNOWN_SENDER, SenderLog
from shared.bus.subjects import Subjects

SERVICE_REPLIES = "_R_."
"""What the server puts in place of a reply subject when a request comes from another account."""
INBOXES = "_INBOX."
"""Of clients without another prefix: of anybody where there are no logins."""
_GATEWAY = "_GR_."
"""Begins a reply subject that comes from another cluster: this, two tokens about the way back, and the subject."""


def is_answerable(message: Msg, subjects: Subjects, requester: str, malformed: SenderLog) -> bool:
    """Whether a request is to be answered: it names an inbox that the tier `requester` may have. Another subject is
    reported."""
    if not message.reply:
        return False
    reply: str = message.reply
    if reply.startswith(_GATEWAY):
        reply = reply.split(".", 3)[-1]
    if reply.startswith((SERVICE_REPLIES, INBOXES, f"{subjects.inbox(requester)}.")):
        return True
    problem = f"it wants its answer at {message.reply[:SHOWN]!r}, which is no inbox"
    malformed.report(UNKNOWN_SENDER, problem, subject=message.subject)
    return False
