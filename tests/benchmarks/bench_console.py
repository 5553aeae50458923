"""The console with 1 000 endpoints whose numbers all change ten times a second: CPU of the console and of its page.

    python -m tests.benchmarks.bench_console [SECONDS]

The goals are 20 % of a core for the console, and 50 % for the page. Needs Debian's chromium and playwright. The page's
part is the CPU time of Chromium's renderer processes; drawing, without a GPU, is another process's.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pointsman.local.ports import Ports
from pointsman.local.services import Address, ServiceProcess
from tests.browser.conftest import USUAL, missing, started_browser
from tests.browser.invented_pool import invented, invented_pool

ENDPOINTS = 1000
PREPARED = 50
"""Sets of numbers that are published in turn."""
COUNT = """() => {
  window.changes = 0;
  const cells = document.querySelectorAll("table.pool tbody td.kv_cache span:last-child");
  const observer = new MutationObserver(() => { window.changes += 1 });
  observer.observe(cells[0], { childList: true, characterData: true, subtree: true });
}"""
"""Counts how often a number changes in the page."""
SETTLED = 5.0
"""Seconds from opening the page to the first reading."""


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of processes so far."""
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(fields[11]) + int(fields[12]) for fields in stats) / os.sysconf("SC_CLK_TCK")


async def measure(seconds: float) -> None:
    """Print the shares of a core."""
    endpoints = [invented(f"gpu-{number}", number) for number in range(1, ENDPOINTS + 1)]
    with tempfile.TemporaryDirectory() as scratch:
        directory, ports = Path(scratch), Ports()
        admin, port = Address(ports.take("admin")), ports.take("page")
        async with invented_pool(directory, endpoints, prepared=PREPARED) as pool, started_browser() as browser:
            flags: dict[str, str | int | float] = {"nats-url": pool.nats.url, "console-port": port}
            flags |= {"admin-host": admin.host, "admin-port": admin.port}
            console = ServiceProcess("console", "console", directory, admin, flags)
            try:
                await console.start()
                page = await browser.new_page(viewport={"width": USUAL[0], "height": USUAL[1]})
                await page.goto(f"http://127.0.0.1:{port}/")
                await asyncio.sleep(SETTLED)
                session = await browser.new_browser_cdp_session()
                processes = (await session.send("SystemInfo.getProcessInfo"))["processInfo"]
                renderers = [process["id"] for process in processes if process["type"] == "renderer"]
                groups = {
                    "console": [console.pid],
                    "page": renderers,
                    "drawing": [process["id"] for process in processes if process["type"] == "GPU"],
                }
                await page.evaluate(COUNT)
                before, started = {name: cpu_seconds(pids) for name, pids in groups.items()}, time.monotonic()
                ticks, changes = pool.ticks, await page.evaluate("window.changes")
                await asyncio.sleep(seconds)
                changes = await page.evaluate("window.changes") - changes
                ticks, took = pool.ticks - ticks, time.monotonic() - started
                for name, pids in groups.items():
                    print(f"{name:8} {(cpu_seconds(pids) - before[name]) / took:6.1%} of a core")
                rows = await page.locator("table.pool tbody th").count()
                print(f"{ENDPOINTS} endpoints, {rows} rows shown; a second, {ticks / took:.1f} updates of each are")
                print(f"published, and a number in the page changes {changes / took:.1f} times")
                await page.close()
            finally:
                await console.stop()
                ports.close()


def main() -> None:
    if reason := missing():
        sys.exit(reason)
    asyncio.run(measure(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0))


if __name__ == "__main__":
    main()
