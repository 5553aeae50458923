"""A child does its work within bounds, and its parent learns what came of it."""

from pathlib import Path

import pytest

from shared.service.child import Child, ChildFailed, run_child
from tests.children import children_end_before_the_loop

__all__ = ["children_end_before_the_loop"]

LONG = 3600.0


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module whose child executes what it reads."""
    monkeypatch.syspath_prepend(tmp_path)
    text = "import os, sys\nfrom shared.service.child import confine\n\nanswers = confine(memory=2**26, cpu={cpu})\n"
    for name, cpu in (("executes", 60), ("executes_a_second", 1)):  # the imports alone may take a second
        code = f"{text.format(cpu=cpu)}exec(sys.stdin.read())\nanswers.flush()\n"
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    return "executes"


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("b' ' * 2**27", "exited with status 1"),
        ("answers.write('x' * 200_000)", "more than 100000 bytes"),
        ("raise SystemExit(3)", "exited with status 3"),
    ],
)
async def test_a_child_that_wants_too_much_gives_no_answer(module: str, task: str, message: str) -> None:
    with pytest.raises(ChildFailed, match=message):
        await run_child(module, task.encode(), LONG, 100_000)


async def test_a_child_that_computes_for_too_long_is_killed(module: str) -> None:
    with pytest.raises(ChildFailed, match="exited with status -9"):
        await run_child(f"{module}_a_second", b"while True: pass", LONG, 100_000)


async def test_what_a_child_prints_is_no_part_of_its_answer(module: str) -> None:
    task = "print('here'); answers.write(f'{os.getpriority(os.PRIO_PROCESS, 0) > 0}')"
    assert await run_child(module, task.encode(), LONG, 100_000) == b"True"


async def test_a_child_that_takes_too_long_is_killed(module: str) -> None:
    child = Child(module)
    await child.start()
    with pytest.raises(ChildFailed, match="longer than 0 s"):
        await child.answer(0.0, 1)
    assert child._process is not None
    assert await child._process.wait() == -9
