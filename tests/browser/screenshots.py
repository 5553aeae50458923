"""Makes the pictures of docs/console.md: a small system under load, and its console in Chromium.

python -m tests.browser.screenshots [DIRECTORY]     docs/images by default
"""

import asyncio
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from pointsman.local.stack import LocalStack, StackPlan, simulators
from tests.browser.conftest import NARROW, USUAL, console, missing, started_browser

TRAFFIC = 90.0
"""Seconds of load before the first picture: the lines of the last minutes need some."""
CLIENTS = 24
CHAT = "/v1/chat/completions"
CONFIGURATION = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
featureGates: [flowControl]
plugins:
- type: concurrency-detector
  parameters: {maxConcurrency: 3}
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: round-robin-fairness-policy
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
flowControl:
  saturationDetector: {pluginRef: concurrency-detector}
  defaultPriorityBand: {fairnessPolicyRef: round-robin-fairness-policy}
"""


async def load(url: str, ids: list[str], seed: int) -> None:
    """One client, for ever."""
    chance = random.Random(seed)
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:
        while True:
            prompt = f"Tenant {chance.randrange(8)} asks: " + "why? " * chance.randrange(50, 400)
            body = {"model": "base", "messages": [{"role": "user", "content": prompt}], "max_tokens": 40}
            headers = {"x-gateway-inference-fairness-id": f"tenant-{chance.randrange(4)}"}
            response = await client.post(CHAT, json=body, headers=headers)
            ids.append(response.headers.get("x-request-id", ""))


async def take(directory: Path) -> None:
    """Write the pictures."""
    plan = StackPlan(simulators=simulators(6, speed=2, models="base"), configuration=CONFIGURATION)
    ids: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        async with LocalStack(plan, Path(scratch)) as stack, console(stack.nats.url) as service, started_browser() as b:
            clients = [asyncio.create_task(load(stack.url, ids, seed)) for seed in range(CLIENTS)]
            await asyncio.sleep(TRAFFIC)
            origin = f"http://127.0.0.1:{service.console_port}"
            shots = [
                ("pool", "#/pool", USUAL, "light"),
                ("pool-narrow", "#/pool", NARROW, "dark"),
                ("decision", f"#/decisions/{ids[-1]}", USUAL, "light"),
                ("flow", "#/flow", (USUAL[0], 560), "dark"),
            ]
            for name, path, size, scheme in shots:
                await _shoot(b, f"{origin}/{path}", size, scheme, directory / f"console-{name}.png")
            for client in clients:
                client.cancel()
            await asyncio.gather(*clients, return_exceptions=True)


async def _shoot(browser: Any, url: str, size: tuple[int, int], scheme: str, file: Path) -> None:
    page = await browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    await page.goto(url)
    await asyncio.sleep(4)  # the histories and what the members say of themselves come after the first event
    await page.screenshot(path=file)
    await page.close()
    print(file)


def main() -> None:
    if reason := missing():
        sys.exit(reason)
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images")
    directory.mkdir(parents=True, exist_ok=True)
    asyncio.run(take(directory))


if __name__ == "__main__":
    main()
