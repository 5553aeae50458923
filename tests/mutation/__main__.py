"""`make mutants`: how many of a sample of small defects the tests find.

    python -m tests.mutation [--seed N] [--count N] [--only PATH]... [--unit] [--workers N]
        [--results FILE [--resume]]

The sample is shared out among the tiers by their lines. A mutant meets the unit tests that execute it, and if these
pass, the protocol tests of its tier. equivalent.txt lists mutants that nobody could tell from the original. Exit status
1: too few caught.
"""

import argparse
import json
import queue
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from tests.mutation.mutations import Mutation, is_python, mutations
from tests.mutation.runs import PROTOCOL, Tree, tier_of

ROOT = Path(__file__).parents[2]
WANTED = 0.92
MIN_OF_A_TIER = 5


def sample(seed: int, count: int, only: list[str]) -> list[Mutation]:
    """At most one mutation of a line, in random order."""
    tiers = []
    for tier in PROTOCOL:
        lines: dict[tuple[str, int], Mutation] = {}
        for file in (ROOT / tier).rglob("*.py"):
            path = file.relative_to(ROOT)
            if not only or any(path.is_relative_to(each) for each in only):
                for mutation in mutations(str(path), file.read_bytes()):
                    kept = lines.setdefault((mutation.path, mutation.line), mutation)
                    lines[mutation.path, mutation.line] = min(kept, mutation, key=lambda each: each.rank(seed))
        tiers.append(sorted(lines.values(), key=lambda each: each.rank(seed)))
    total = sum(map(len, tiers))
    chosen = []
    for found in tiers:
        share = max(round(count * len(found) / total), MIN_OF_A_TIER) if not only else round(count * len(found) / total)
        valid = (mutation for mutation in found if is_python(mutation, (ROOT / mutation.path).read_bytes()))
        chosen += [mutation for _, mutation in zip(range(share), valid, strict=False)]
    return sorted(chosen, key=lambda each: each.rank(seed))


def tell(mutation: Mutation, caught_by: str | None) -> None:
    where, (before, after) = f"{mutation.path}:{mutation.line} {mutation.function}", mutation.text.split(" -> ", 1)
    verdict = f"caught {where}\n  by {caught_by}" if caught_by else f"SURVIVED {where}"
    print(f"{verdict}\n  - {before}\n  + {after}", flush=True)


def run(chosen: list[Mutation], results: Path, workers: int, *, unit: bool) -> dict[str, str | None]:
    """What caught each mutant, by its key; those that `results` knows aren't tried again."""
    known = {each["key"]: each["caught_by"] for each in map(json.loads, results.read_text().splitlines())}
    trees = queue.Queue[Tree]()

    def check(mutation: Mutation) -> str | None:
        tree = trees.get()
        try:
            return tree.caught_by(mutation, executed, unit=unit)
        finally:
            trees.put(tree)

    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch, ThreadPoolExecutor(workers) as pool:
        copies = [Tree(ROOT, Path(scratch, str(number))) for number in range(workers)]
        executed = copies[0].execute(workers)
        for tree in copies:
            trees.put(tree)
        todo = {pool.submit(check, mutation): mutation for mutation in chosen if mutation.key not in known}
        try:
            for future in as_completed(todo):
                mutation, caught_by = todo[future], future.result()
                with results.open("a") as file:
                    file.write(json.dumps({"key": mutation.key, "caught_by": caught_by, **asdict(mutation)}) + "\n")
                tell(mutation, caught_by)
                known[mutation.key] = caught_by
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        # A test that fails without a mutation, too, has caught nothing.
        by = {str(known[each.key]) for each in chosen if "::" in str(known[each.key])}
        broken = set(trees.get().failures(sorted(by))) if by else set()
    return {key: None if caught_by in broken else caught_by for key, caught_by in known.items()}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--only", action="append", default=[], metavar="PATH", help="a file or folder to mutate")
    parser.add_argument("--unit", action="store_true", help="leave the protocol tests out")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--results", type=Path, default=ROOT / ".run/mutants.jsonl", help="a line of JSON per mutant")
    parser.add_argument("--resume", action="store_true", help="go on where the results end")
    options = parser.parse_args()

    equivalent = {line for line in Path(__file__).with_name("equivalent.txt").read_text().splitlines() if line}
    chosen = [each for each in sample(options.seed, options.count, options.only) if each.key not in equivalent]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    options.results.open("a" if options.resume else "w").close()
    caught_by = run(chosen, options.results, options.workers, unit=options.unit)

    print("\n== survivors")
    for mutation in chosen:
        if caught_by[mutation.key] is None:
            tell(mutation, None)
    for tier in PROTOCOL:
        of_tier = [caught_by[each.key] for each in chosen if tier_of(each.path) == tier]
        print(f"{tier:<20} {len(of_tier) - of_tier.count(None):>3} of {len(of_tier):>3} caught")
    share = 1 - [caught_by[each.key] for each in chosen].count(None) / max(len(chosen), 1)
    print(f"{share:.1%} of {len(chosen)} mutants caught, {WANTED:.0%} wanted")
    return int(share < WANTED)


if __name__ == "__main__":
    sys.exit(main())
