"""Fuzzes one target with atheris, which needs `pip install 'pointsman[fuzz]'`.

    python -m tests.fuzz parsers -max_total_time=300

What follows the target goes to libFuzzer. A file that crashes can be given as the only argument, and belongs into the
target's corpus when the fault is mended.
"""

import sys

import atheris

from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import TARGETS, check_of, seeds


def main() -> None:
    target = sys.argv[1] if len(sys.argv) > 1 else ""
    if target not in TARGETS:
        sys.exit(f"{target or 'nothing'} is no target; these are: {', '.join(TARGETS)}")
    with atheris.instrument_imports(include=list(TARGETS[target])):
        check = check_of(target)
    mutator = Mutator([seed.read_bytes() for seed in seeds(target)], lambda data, most: atheris.Mutate(data, most))
    atheris.Setup([sys.argv[0], *sys.argv[2:]], check, custom_mutator=mutator)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
