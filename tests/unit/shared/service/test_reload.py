"""What becomes of configurations that a process is offered."""

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from shared.config.defaults import revision
from shared.config.problems import Invalid, Problem
from shared.service import reload, settings
from shared.service.configured import Configured
from shared.service.reload import Reloader
from shared.tasks import cancel
from tests.waiting import eventually


class Tier:
    """Runs texts; refuses those with `bad` in them, fails on those with `odd`, and reads those that begin with `slow`
    until it is let go on."""

    def __init__(self, running: str | None = "") -> None:
        self.used: list[tuple[str, str]] = []
        self.read: list[str] = []
        self.mended = False
        self.failure: type[Exception] = KeyError
        self.go_on = threading.Event()
        self.config = Reloader(self._read, self.used.append, running)

    def _read(self, text: str, origin: str) -> tuple[str, str]:
        self.read.append(text)
        if text.startswith("slow"):
            assert self.go_on.wait(60)
        if "bad" in text:
            raise Invalid([Problem("plugins[0]", text)], origin)
        if "odd" in text and not self.mended:
            raise self.failure(text)
        return text, origin

    @property
    def counts(self) -> tuple[int, int]:
        return self.config.accepted, self.config.refused

    async def offered(self, text: str, origin: str = "here") -> None:
        """Offer it, and wait for what comes of it."""
        outcomes = sum(self.counts)
        self.config.offer(text, origin)
        await eventually(lambda: sum(self.counts) > outcomes)

    def __repr__(self) -> str:
        return f"<Tier {self.used}, {self.read}, {self.config!r}>"


T = TypeVar("T", bound=Tier)


@asynccontextmanager
async def running(tier: T) -> AsyncIterator[T]:
    """While it takes what it is offered."""
    task = asyncio.create_task(tier.config.run())
    yield tier
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})


@pytest.fixture
async def tier() -> AsyncIterator[Tier]:
    async with running(Tier()) as started:
        yield started


async def test_a_configuration_is_used_once_however_often_it_comes(tier: Tier) -> None:
    for text in ("a", "b", "a"):
        await tier.offered(text)
        tier.config.offer(text, "here")
    assert tier.used == [("a", "here"), ("b", "here"), ("a", "here")]
    assert (tier.counts, tier.config.problem, len(tier.read)) == ((3, 0), "", 3)


def test_the_one_that_is_running_is_no_news() -> None:
    tier = Tier()
    tier.config.offer("", "")
    assert tier.config.pending() is None
    tier.config.offer("a", "here")
    assert tier.config.pending() is None, "a process that serves goes on"


async def test_without_one_that_runs_the_default_is_news() -> None:
    async with running(Tier(None)) as tier:
        await tier.offered("", "")
        assert tier.used == [("", "")]


@pytest.mark.parametrize("text", ["slow", "slow bad", "slow odd"])
async def test_nothing_is_served_until_the_first_has_been_read(tier: Tier, text: str) -> None:
    assert tier.config.pending() is None, "there may be none"
    tier.config.offer(text, "here")
    await eventually(lambda: tier.read == [text])
    tier.config.offer(text, "here")
    assert tier.config.pending() == "the first configuration is being read"
    tier.go_on.set()
    await eventually(lambda: tier.config.pending() is None)
    assert sum(tier.counts) == 1
    tier.go_on.clear()
    tier.config.offer("slow next", "here")
    assert tier.config.pending() is None
    tier.go_on.set()


async def test_the_event_loop_goes_on_while_one_is_read_and_the_order_stays(tier: Tier) -> None:
    await tier.offered("a")
    tier.config.offer("slow", "here")
    await eventually(lambda: tier.read == ["a", "slow"])
    for text in ("b", "c", "d"):
        tier.config.offer(text, "here")
    assert tier.used == [("a", "here")]
    tier.go_on.set()
    await eventually(lambda: tier.used[-1:] == [("d", "here")])
    assert [text for text, _ in tier.used] == tier.read == ["a", "slow", "d"], "what was overtaken isn't read"


async def test_the_one_in_use_is_known_by_its_origin_and_revision_and_said_when_it_is_taken(tier: Tier) -> None:
    assert tier.config.in_use("a/b") == Configured("a/b", "built-in default", revision(""))
    with capture_logs() as logs:
        await tier.offered("a")
        await tier.offered("bad", "there")
    assert tier.config.in_use("a/b") == Configured("a/b", "here", "ca978112ca1b")
    taken = [line for line in logs if line["event"] == "config.loaded"]
    assert [(configuration["origin"], configuration["revision"]) for configuration in taken] == [
        ("here", "ca978112ca1b")
    ]


async def test_a_bad_one_is_refused_once_and_said_until_a_good_one_comes(tier: Tier) -> None:
    await tier.offered("a")
    with capture_logs() as logs:
        await tier.offered("bad", "there")
        for _ in range(2):
            tier.config.offer("bad", "there")
    assert [(line["event"], line["problems"]) for line in logs] == [("config.refused", ["there: plugins[0]: bad"])]
    assert (tier.counts, tier.config.problem) == ((1, 1), "there: plugins[0]: bad")
    await tier.offered("a")
    assert tier.used == [("a", "here"), ("a", "here")]
    assert (tier.counts, tier.config.problem, tier.read) == ((2, 1), "", ["a", "bad", "a"])


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again after 5 ms."""
    monkeypatch.setattr(reload, "RETRY", 0.005)


@pytest.mark.usefixtures("soon")
async def test_one_on_which_a_plugin_fails_is_refused_with_the_traceback_and_tried_again(tier: Tier) -> None:
    with capture_logs() as logs:
        tier.config.offer("odd", "there")
        await eventually(lambda: len(tier.read) > 3)
        assert (tier.used, tier.counts, tier.config.problem) == ([], (0, 1), "there: KeyError: 'odd'")
        tier.mended = True
        await eventually(lambda: tier.used == [("odd", "there")])
        read = len(tier.read)
        await asyncio.sleep(0.03)
    assert (len(tier.read), tier.counts, tier.config.problem) == (read, (1, 1), "")
    assert [line["event"] for line in logs] == ["config.failed", "config.loaded"], "each said once"
    assert logs[0]["exc_info"]


@pytest.mark.usefixtures("soon")
async def test_a_failed_one_isnt_tried_any_more_when_another_came(tier: Tier) -> None:
    await tier.offered("odd", "there")
    await tier.offered("bad", "there")
    read = len(tier.read)
    await asyncio.sleep(0.03)
    assert (len(tier.read), tier.counts) == (read, (0, 2))


async def test_a_plugin_may_raise_what_a_future_cant_pass_on(tier: Tier) -> None:
    tier.failure = StopIteration
    await tier.offered("odd")
    assert tier.config.problem == "here: RuntimeError: StopIteration: odd"
    await tier.offered("a")
    assert tier.used == [("a", "here")]


async def test_one_that_fails_when_it_is_put_to_use_is_said_too() -> None:
    def fail(_: str) -> None:
        raise OSError("no room")

    config = Reloader(lambda text, _: text, fail)
    task = asyncio.create_task(config.run())
    config.offer("", "")
    await eventually(lambda: config.refused == 1)
    await cancel(task)
    assert (config.accepted, config.refused, config.problem) == (0, 1, "built-in default: OSError: no room")


# A file that is followed


class Followed(Tier):
    def __init__(self, path: Path) -> None:
        super().__init__(path.read_text())
        self.path = path

    async def sees(self, *texts: str) -> None:
        await eventually(lambda: [text for text, _ in self.used] == list(texts))

    async def refuses(self, reason: str, count: int) -> None:
        await eventually(lambda: self.config.refused == count)
        assert reason in self.config.problem


@asynccontextmanager
async def following(tier: Followed, interval: float) -> AsyncIterator[None]:
    task = asyncio.create_task(tier.config.follow(str(tier.path), "--config-file", interval=interval))
    yield
    assert not task.done()
    task.cancel()
    await asyncio.wait({task})


@pytest.fixture
async def followed(tmp_path: Path) -> AsyncIterator[Followed]:
    path = tmp_path / "config.yaml"
    path.write_text("first")
    async with running(Followed(path)) as tier, following(tier, 0.1):
        yield tier


async def test_a_changed_file_is_offered_and_an_unchanged_one_isnt(followed: Followed) -> None:
    followed.path.write_text("second")
    await followed.sees("second")
    followed.path.touch()
    (followed.path.parent / "neighbour").touch()
    new = followed.path.with_suffix(".new")
    new.write_text("third")
    new.rename(followed.path)
    await followed.sees("second", "third")
    assert followed.used[-1] == ("third", str(followed.path))


async def test_a_file_that_is_gone_empty_or_no_text_changes_nothing_and_is_said_once(followed: Followed) -> None:
    followed.path.unlink()
    await followed.refuses("can't be read: No such file", 1)
    followed.path.write_text("\n")
    await followed.refuses("is empty", 2)
    followed.path.write_bytes(b"\xff")
    await followed.refuses("isn't UTF-8", 3)
    await asyncio.sleep(0.3)
    assert (followed.used, followed.config.refused) == ([], 3)
    followed.path.write_text("first")
    await followed.sees("first")
    assert followed.config.problem == ""


async def test_a_file_that_the_system_cannot_read_for_now_is_read_at_the_next_look(
    followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed.path.write_text("second")
    await followed.sees("second")
    with monkeypatch.context() as patched:
        patched.setattr(settings, "read_regular", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
        os.truncate(followed.path, 3)
        await followed.refuses("Input/output error", 1)
    await followed.sees("second", "sec")
    assert followed.config.refused == 1


async def test_a_link_that_is_swapped_is_a_change(tmp_path: Path) -> None:
    """As Kubernetes updates a mounted ConfigMap."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text(name)
    (tmp_path / "..data").symlink_to("one")
    (tmp_path / "config.yaml").symlink_to("..data/config.yaml")
    async with running(Followed(tmp_path / "config.yaml")) as tier, following(tier, 1.0):
        await asyncio.sleep(0.2)
        (tmp_path / "..new").symlink_to("two")
        (tmp_path / "..new").rename(tmp_path / "..data")
        await tier.sees("two")


async def test_what_is_no_regular_file_is_left_alone(tmp_path: Path) -> None:
    config = Reloader(lambda text, _: text, lambda _: None, "read already")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await config.follow("/dev/null", "--config-file", interval=0.05)
    assert (config.accepted, config.refused) == (0, 0)
