"""CPU of a process's start and end, and how long a full garbage collection takes once it serves.

    .venv/bin/python -m tests.benchmarks.bench_start

Each command is run up to its `--help`: that imports all it needs, and ends. Beside it stands the same without what
`pointsman.cli` does about garbage collection, which is put off while modules are imported, and which leaves out what
they are made of afterwards. A collection happens in between, on the event loop: nothing else is served meanwhile. Each
figure is the best of several rounds that take turns. Takes about half a minute.
"""

import os
import subprocess
import sys

from pointsman.cli import COMMANDS

ROUNDS = 5
START = "import sys; from pointsman.cli import main; sys.exit(main([{command!r}, '--help']))"
PLAIN = "import importlib, sys; sys.exit(importlib.import_module({module!r}).main(['--help']))"
COLLECT = "; import gc, time; began = time.perf_counter(); gc.collect(); print(time.perf_counter() - began)"
FROZEN = "from pointsman.cli import imported; imported({module!r})" + COLLECT
THAWED = "import importlib; importlib.import_module({module!r})" + COLLECT


def cpu(program: str) -> float:
    """Seconds of CPU time that a Python program takes from its start to its end."""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 2):
        raise RuntimeError(f"{program!r} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def printed(program: str) -> float:
    """The number that a Python program prints."""
    return float(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)


def main() -> None:
    bare = min(cpu("pass") for _ in range(ROUNDS))
    print(f"Python alone: {bare * 1000:.0f} ms of CPU")
    print(
        f"{'command':<12}{'start and end':>15}{'with collection':>17}{'ratio':>7}   a full collection: then / otherwise"
    )
    for command, (module, _) in COMMANDS.items():
        starts, plains, short, long = [], [], [], []
        for _ in range(ROUNDS):
            starts.append(cpu(START.format(command=command)))
            plains.append(cpu(PLAIN.format(module=module)))
            short.append(printed(FROZEN.format(module=module)))
            long.append(printed(THAWED.format(module=module)))
        start, plain = min(starts), min(plains)
        collections = f"{min(short) * 1000:.1f} ms / {min(long) * 1000:.1f} ms"
        print(f"{command:<12}{start * 1000:>12.0f} ms{plain * 1000:>14.0f} ms{plain / start:>7.1f}   {collections}")


if __name__ == "__main__":
    main()
