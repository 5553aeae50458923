"""What a process logs, in a process of its own: logging is set up once for all of it."""

import json
import subprocess
import sys
from typing import Any

import pytest

SCRIPT = """
import logging, threading, warnings
import structlog
from shared.service import logs

logs.configure("{level}", "{form}", tier="picker", id="p-1")
log = structlog.get_logger("ours")
{body}
"""


def run(body: str, form: str = "json", level: str = "info") -> str:
    script = SCRIPT.format(form=form, level=level, body=body)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == ""
    return done.stderr


def lines(body: str, level: str = "info") -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(body, level=level).splitlines()]


def test_a_line_is_one_json_object_with_what_is_bound() -> None:
    [line] = lines("log.info('endpoint.added', endpoint='a', port=80)")
    del line["timestamp"]
    assert line == {
        "event": "endpoint.added",
        "endpoint": "a",
        "port": 80,
        "level": "info",
        "logger": "ours",
        "tier": "picker",
        "id": "p-1",
    }


def test_libraries_warnings_and_other_threads_come_through_the_same_door() -> None:
    found = lines(
        "logging.getLogger('lib').warning('hello %s', 'there')\n"
        "threading.Thread(target=lambda: log.info('thread.ran')).start()\n"
        "warnings.simplefilter('always'); warnings.warn('careful')\n"
    )
    assert {line["id"] for line in found} == {"p-1"}
    texts = [line["event"] for line in found]
    assert "hello there" in texts
    assert "thread.ran" in texts
    assert any("careful" in text for text in texts)


def test_lines_below_the_level_are_left_out_and_talkative_libraries_are_heard_from_warning_on() -> None:
    body = "log.info('a'); log.warning('b')\n"
    body += "for name in ('nats', 'uvicorn'): log = logging.getLogger(name); log.info('no'); log.warning('yes')"
    assert [line["event"] for line in lines(body, level="debug")] == ["a", "b", "yes", "yes"]
    assert [line["event"] for line in lines(body, level="warning")] == ["b", "yes", "yes"]


def test_what_is_wrong_with_requests_to_admin_ports_is_no_line() -> None:
    body = "log = logging.getLogger('uvicorn.error'); log.warning('Invalid HTTP request received.'); log.error('a')"
    assert [line["event"] for line in lines(body, level="debug")] == ["a"]


@pytest.mark.parametrize("form", ["json", "console"])
def test_what_others_say_doesnt_control_the_terminal(form: str) -> None:
    evil = r"a\x1b[2J\x9bb\nc"
    body = f"""
log.info("{evil}", reason="{evil}", reasons=["{evil}"])
logging.getLogger("lib").warning("{evil}")
try:
    raise OSError("{evil}")
except OSError:
    log.exception("bus.lost")
"""
    text = run(body, form)
    assert not set(text) & {"\x1b", "\x9b"}
    assert not any(line.startswith("c") for line in text.splitlines()[:2])


@pytest.mark.parametrize("form", ["json", "console"])
def test_an_exception_comes_with_its_traceback_and_without_local_variables(form: str) -> None:
    """A local variable may hold a password."""
    body = """
def connect(password):
    raise OSError("refused")
try:
    connect("hunter2")
except OSError:
    log.exception("bus.lost")
"""
    text = run(f"log.info('endpoint.added', port=80){body}", form)
    assert form == "json" or " [info     ] endpoint.added " in text
    assert "OSError: refused" in text
    assert "in connect" in text
    assert "hunter2" not in text
