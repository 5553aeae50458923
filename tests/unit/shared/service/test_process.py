"""What a service does with its background tasks."""

import asyncio
import inspect
import subprocess
import sys

import pytest
from prometheus_client import generate_latest

from shared.service.process import MAX_OWN_ID, Service, run
from shared.service.settings import EXIT_INVALID, CommonSettings


@pytest.mark.parametrize("name", ["process_cpu_seconds_total", "python_info", "python_gc_collections_total"])
def test_the_metrics_tell_of_the_process_too(name: str) -> None:
    assert f"\n{name}" in generate_latest(Service(CommonSettings()).registry).decode()


async def test_work_that_is_cancelled_before_it_begins_is_closed() -> None:
    begun = []

    async def work() -> None:
        begun.append(True)

    given = work()
    task = Service(CommonSettings()).spawn(given, "work")
    task.cancel()
    await asyncio.wait([task])
    assert (task.cancelled(), begun) == (True, [])
    await asyncio.sleep(0)
    assert inspect.getcoroutinestate(given) == inspect.CORO_CLOSED


@pytest.mark.parametrize(("connections", "low"), [(5, False), (100, True)])
def test_a_process_may_open_as_many_files_as_the_system_allows(connections: int, low: bool) -> None:
    code = f"""
import asyncio, resource
from shared.service.process import MAX_OWN_ID, Service, run
from shared.service.settings import EXIT_INVALID, CommonSettings

class Tier(Service):
    max_connections = {connections}

    async def start(self):
        print("limit", resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self.stop()

resource.setrlimit(resource.RLIMIT_NOFILE, (50, 90))
asyncio.run(Tier(CommonSettings(admin_port=0, admin_host="127.0.0.1", admin_connections=50)).serve())
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "limit 90\n" in ran.stdout
    assert ("files.limit.low" in ran.stdout + ran.stderr) is low


def test_an_id_that_no_subject_can_have_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(CommonSettings, Service, ["--id", "x" * (MAX_OWN_ID + 1)], "tier") == EXIT_INVALID
    message = f"--id: an id that takes {MAX_OWN_ID + 1} bytes of a subject; {MAX_OWN_ID} are allowed\n"
    assert capsys.readouterr().err == message
