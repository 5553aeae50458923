"""Messages between a supervisor and a worker."""

import socket
from contextlib import closing
from functools import partial

from services.picker.workers.channel import ADMIN, CONNECTION, RELEASE, SupervisorEnd, WorkerEnd


def test_a_connection_that_the_worker_can_have_no_descriptor_for_is_told_of() -> None:
    """The system hands over the command without it (MSG_CTRUNC), as a command that was sent without one."""
    heard: list[str] = []

    def took(what: str, connection: socket.socket) -> None:
        connection.close()
        heard.append(what)

    ours, theirs = socket.socketpair()
    passed, other = socket.socketpair()
    supervisor = SupervisorEnd(ours)
    worker = WorkerEnd(
        theirs,
        on_connection=partial(took, "connection"),
        on_admin=partial(took, "admin"),
        on_release=lambda: heard.append("release"),
        on_stop=lambda: heard.append("stop"),
        on_end=lambda: heard.append("end"),
        on_lost=lambda command: heard.append(f"lost {command.decode()}"),
    )
    with closing(supervisor), theirs, passed, other:
        for command, connection in ((CONNECTION, None), (ADMIN, None), (CONNECTION, passed), (RELEASE, None)):
            assert supervisor.send(command, connection)
            worker.receive()
    assert heard == ["lost c", "lost a", "connection", "release"]
