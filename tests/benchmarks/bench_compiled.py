"""What a picker would gain if mypyc compiled its request path: the same conversations with compiled and plain modules.

    python -m tests.benchmarks.bench_compiled [--case "200 chunks, unread"] [--rounds 20] [--keep DIRECTORY]

It copies the tree, compiles `MODULES` in the copy with mypyc (of mypy, which `make install` installs) and a C compiler,
and starts a server of `bench_steps` in each of the two trees. They take turns. Prints the CPU time of a conversation
with both, the best and the median of the rounds. Compiling takes one to two minutes of CPU time; `--keep` keeps the
copy, and uses it if it is there.

`MODULES` has what runs in each request and does its work compiled; broken input it handles differently (see
docs/performance.md). Left out are modules that define msgspec structs or dataclasses, classes that are weakly
referenced, and base classes of plugins: mypyc changes what these do.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

import uvloop

from shared.service import logs
from tests.benchmarks.bench_steps import ROOT, USUAL, Server
from tests.benchmarks.live_pool import OTHERS, on_core

MODULES = (
    *("body_buffer", "request_stream"),
    *(f"admin/{name}" for name in ("metrics", "request_metrics")),
    *(f"extproc/{name}" for name in ("conversation", "refusals", "request_answers", "response", "wire")),
    "scheduling/scheduler",
    *(f"state/{name}" for name in ("columns", "health", "histogram", "holders", "inflight", "lru_prefix_index")),
    *(f"state/{name}" for name in ("number_table", "prefix_hits", "rewrites")),
    *(f"transport/{name}" for name in ("calls", "ext_proc", "turns")),
    "transport/http2/*",
)
"""Below services/picker."""
_COPIED = ("docs/profiles", "pointsman", "services", "shared", "tests")
_SETUP = """\
import sys
from mypyc.build import mypycify
from setuptools import setup
files, sys.argv = sys.argv[1:], ["setup.py", "--quiet", "build_ext", "--inplace"]
setup(name="compiled", packages=[], ext_modules=mypycify(files, opt_level="2", debug_level="0"))
"""


def compiled(tree: Path) -> Path:
    """A copy of this tree with compiled modules. Raises CalledProcessError."""
    for name in _COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "corpus"))
    picker = tree / "services" / "picker"
    files = [path for name in MODULES for path in sorted(picker.glob(f"{name}.py")) if path.name != "__init__.py"]
    command = [
        sys.executable,
        "-c",
        _SETUP,
        f"--config-file={ROOT / 'pyproject.toml'}",
        *(str(path.relative_to(tree)) for path in files),
    ]
    subprocess.run(command, cwd=tree, check=True, stdout=subprocess.DEVNULL)
    print(f"{len(files)} modules compiled", flush=True)
    return tree


async def measure(trees: dict[str, Path], title: str, rounds: int, length: float) -> dict[str, list[float]]:
    """CPU seconds of a conversation in each round."""
    found: dict[str, list[float]] = {name: [] for name in trees}
    plain, other = (Server(title, tree) for tree in trees.values())
    async with plain, other:
        for _ in range(rounds):
            for times, server in zip(found.values(), (plain, other), strict=True):
                profile, count = await server.profile(length)
                times.append(profile.seconds / count)
    return found


def main(arguments: argparse.Namespace) -> None:
    if shutil.which("cc") is None:
        print("left out: there is no C compiler")
        return
    with tempfile.TemporaryDirectory() as directory, on_core(OTHERS):
        tree = (arguments.keep or Path(directory) / "compiled").absolute()
        if not any(tree.glob("*__mypyc*")):
            compiled(tree)
        trees = {"plain": ROOT, "compiled": tree}
        found = uvloop.run(measure(trees, arguments.case, arguments.rounds, arguments.seconds))
    (least, usual), *_ = ((min(times), median(times)) for times in found.values())
    for name, times in found.items():
        print(
            f"{name:10} best {min(times) * 1e6:6.1f} µs, × {min(times) / least:.3f};"
            f" median {median(times) * 1e6:6.1f} µs, × {median(times) / usual:.3f}"
        )


if __name__ == "__main__":
    logs.configure("error", "console")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=USUAL, help="part of the title of one of bench_picker's cases")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round")
    parser.add_argument("--keep", type=Path, help="the folder of the copy")
    main(parser.parse_args())
