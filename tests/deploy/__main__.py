"""`python -m tests.deploy`: deploys for real, plays the scenarios, prints a table, and leaves nothing behind.

Exits with 0 if every promise held, 1 if one didn't, 2 if this machine can't run it; with `--if-possible`, 0 then, too.
"""

import argparse
import asyncio
import re
import signal
import sys
import tempfile
from pathlib import Path

from tests.deploy import kubernetes
from tests.deploy.compose import compose
from tests.deploy.compose_page import SCENARIO as PAGE_SCENARIO
from tests.deploy.compose_page import follow
from tests.deploy.compose_scenarios import everything
from tests.deploy.engine import engine
from tests.deploy.images import ROOT, STARTS, measure, provide
from tests.deploy.results import Result, render, write
from tests.deploy.shell import Failed, Missing


async def compose_part(only: str) -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="pointsman-deploy-") as name:
        directory = Path(name)
        (project := directory / "project").mkdir()
        async with engine(directory) as docker:
            made = await provide(docker)
            try:
                image = await measure(docker)
                results = [
                    Result(
                        scenario="the image",
                        note=f"{image.megabytes:.0f} MB; a picker answers {image.start:.1f} s after `docker run`, of "
                        f"which the engine takes {image.container:.1f} s, and ends {image.stop:.1f} s after SIGTERM; "
                        f"medians of {STARTS}",
                    )
                ]
                async with compose(docker, project) as running:
                    if re.search(only, PAGE_SCENARIO):
                        results.append(await follow(running))
                    return results + await everything(running, only)
            finally:
                if not docker.own and made:
                    await docker("rmi", "--force", *made)


PAGE = ROOT / "docs/reliability.md"
PARTS = ("compose", "kubernetes")


async def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.deploy", description=__doc__)
    parser.add_argument("--part", choices=PARTS, help="this part alone")
    parser.add_argument("--only", default="", help="scenarios whose names match this regular expression")
    parser.add_argument("--write", action="store_true", help=f"write the rows of {PAGE.name} that passed")
    parser.add_argument(
        "--previous", default="", metavar="REF", help="upgrade the chart from here; default: newest tag"
    )
    parser.add_argument("--if-possible", action="store_true", help="end with 0 where a part can't run")
    arguments = parser.parse_args()
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    code = 0
    for name in PARTS:
        if arguments.part not in (None, name):
            continue
        try:
            if name == "compose":
                results = await compose_part(arguments.only)
            else:
                results = await kubernetes.part(
                    arguments.only, build=not arguments.if_possible, previous=arguments.previous
                )
        except Missing as missing:
            print(f"deploy-test: the {name} part can't run here: {missing}", file=sys.stderr)
            code = code or (0 if arguments.if_possible else 2)
            continue
        except Failed as failed:
            print(f"deploy-test: the {name} part: {failed}", file=sys.stderr)
            code = 1
            continue
        print(f"\n{render(results)}\n")
        if arguments.write:
            passed = [result for result in results if result.passed]
            write(PAGE, name, render(passed), keep=bool(arguments.only) or passed != results)
        code = code if all(result.passed for result in results) else 1
        print(f"deploy-test: the {name} part ran")
    return code


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
