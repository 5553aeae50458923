"""`make flaky`: one test, many times, beside processes that keep every core busy.

    python -m tests.flaky TEST [--times N]

Retries are off. Prints each failure's report and how many there were; exit status 1 when there was one.
"""

import argparse
import os
import subprocess
import sys

HOG = "import os\nwhile os.getppid() == {parent}: pass"
"""Ends when this process does, however that ends."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.flaky", description=__doc__.splitlines()[0])
    parser.add_argument("test", nargs="+", help="a file, or a test's id as pytest prints it")
    parser.add_argument("--times", type=int, default=50)
    options = parser.parse_args()
    hog = [sys.executable, "-c", HOG.format(parent=os.getpid())]
    hogs = [subprocess.Popen(hog) for _ in range(os.cpu_count() or 1)]
    failed = 0
    try:
        for number in range(options.times):
            run = subprocess.run(
                [sys.executable, "-m", "pytest", "-q", *options.test],
                env={**os.environ, "POINTSMAN_RETRIES": "0"},
                capture_output=True,
                text=True,
                check=False,
            )
            if run.returncode:
                failed += 1
                print(f"== {number + 1} of {options.times}\n{run.stdout}{run.stderr}", flush=True)
    finally:
        for process in hogs:
            process.kill()
            process.wait()
    print(f"{failed} of {options.times} runs failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
