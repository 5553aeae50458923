"""Files and directories as events."""

# ruff: noqa: ASYNC240 - the files are the test's own, and nothing else runs in its event loop

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from services.watcher import files
from services.watcher.files import FileReader, FileSource, Limits, Root
from services.watcher.resources import PoolId
from services.watcher.sources import Event, Rejected, Removed, Reset
from shared.datalayer.objects import NODE
from shared.plugin import Registry

GOOD = "endpoints:\n- {name: a, address: 10.0.0.1, port: 80}\n"
OTHER = "endpoints:\n- {name: b, address: 10.0.0.20, port: 80}\n"


def source(*paths: Path, watched: bool = True, configures: bool = False, limits: Limits | None = None) -> FileSource:
    made = FileSource(FileReader(PoolId("default", "default"), Registry, limits=limits), 2.0)
    made.follow([Root(str(path), "--endpoints-file", watched, configures) for path in paths])
    return made


def said(events: list[Event]) -> list[tuple[str, str]]:
    """Each event as (file name, names of its endpoints, or its first problem, or `removed`)."""
    spoken: list[tuple[str, str]] = []
    for event in events:
        match event:
            case Reset(origin, documents):
                spoken.append((Path(origin).name, " ".join(endpoint.name for endpoint in documents.endpoints or ())))
            case Rejected(origin, problems):
                spoken.append((Path(origin).name, str(problems[0])))
            case Removed(origin):
                spoken.append((Path(origin).name, "removed"))
    return spoken


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "endpoints.yaml"
    file.write_text(GOOD)
    return file


async def test_a_file_is_read_once_while_it_stays_as_it_is(path: Path) -> None:
    reading = source(path)
    assert said(await reading.load()) == [("endpoints.yaml", "a")]
    assert await reading.load() == []


async def test_a_file_that_is_replaced_by_rename_is_read_again(path: Path) -> None:
    reading = source(path)
    await reading.load()
    replacement = path.with_name("new")
    replacement.write_text(OTHER)
    os.utime(replacement, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    replacement.rename(path)
    assert said(await reading.load()) == [("endpoints.yaml", "b")]


async def test_a_missing_file_is_rejected_once_and_news_when_it_is_back(path: Path) -> None:
    reading = source(path)
    await reading.load()
    path.rename(path.with_name("away"))
    missing = "document: can't be read: No such file or directory (--endpoints-file)"
    assert said(await reading.load()) == [("endpoints.yaml", missing)]
    assert await reading.load() == []
    path.with_name("away").rename(path)
    assert said(await reading.load()) == [("endpoints.yaml", "a")]


async def test_of_a_directory_the_yaml_and_json_files_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.yml").write_text(OTHER)
    (tmp_path / "a.json").write_text('{"endpoints": []}')
    (tmp_path / "c.yaml").write_text(GOOD)
    (tmp_path / ".hidden.yaml").write_text("{")
    (tmp_path / "notes.txt").write_text("{")
    (tmp_path / "d.yaml~").write_text("{")
    (tmp_path / "sub.yaml").mkdir()
    assert said(await source(tmp_path).load()) == [("a.json", ""), ("b.yml", "b"), ("c.yaml", "a")]


async def test_a_link_that_leads_nowhere_keeps_no_other_file_from_being_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").symlink_to("x" * 300)
    [a, (name, problems)] = said(await source(tmp_path).load())
    assert (a, name) == (("a.yaml", "a"), "b.yaml")
    assert "File name too long" in problems


async def test_a_root_that_changes_while_it_is_listed_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    reading = source(root)
    await reading.load()
    root.symlink_to("x" * 300)
    monkeypatch.setattr(files, "list_files", lambda *_: [])
    assert await reading.load() == []


async def test_a_file_that_leaves_the_directory_is_removed(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text(OTHER)
    reading = source(tmp_path)
    await reading.load()
    (tmp_path / "b.yaml").unlink()
    assert said(await reading.load()) == [("b.yaml", "removed")]


async def test_a_directory_that_empties_is_rejected_and_keeps_its_files(tmp_path: Path) -> None:
    """All files gone at once is a volume that was unmounted rather than a pool without endpoints."""
    (tmp_path / "a.yaml").write_text(GOOD)
    reading = source(tmp_path)
    await reading.load()
    (tmp_path / "a.yaml").unlink()
    assert said(await reading.load()) == [
        (
            tmp_path.name,
            "document: no .yaml, .yml, .json file in it; `endpoints: []` in one says that there are none "
            "(--endpoints-file)",
        )
    ]
    assert await reading.load() == []
    (tmp_path / "a.yaml").write_text(OTHER)
    assert said(await reading.load()) == [(tmp_path.name, "removed"), ("a.yaml", "b")]


async def test_a_configmap_is_read_through_its_links_and_again_when_they_are_swapped(tmp_path: Path) -> None:
    for version, text in (("..1", GOOD), ("..2", OTHER)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "a.yaml").write_text(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "a.yaml").symlink_to("..data/a.yaml")
    reading = source(tmp_path)
    assert said(await reading.load()) == [("a.yaml", "a")]
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").rename(tmp_path / "..data")
    assert said(await reading.load()) == [("a.yaml", "b")]


async def test_a_bad_file_is_rejected_as_a_whole_and_once(path: Path) -> None:
    path.write_text(GOOD + "- {name: c, address: 10.0.0.3, port: 0}\n- {name: d}\n")
    reading = source(path)
    [event] = await reading.load()
    assert isinstance(event, Rejected)
    assert len(event.problems) == 3
    assert await reading.load() == []


@pytest.mark.parametrize(
    ("make", "more", "problem"),
    [
        (
            lambda path: path.write_bytes(b"endpoints:\n- {name: \xff}\n"),
            {},
            "byte 20 isn't UTF-8: invalid start byte (line 2)",
        ),
        (
            lambda path: path.write_text(GOOD),
            {"limits": Limits(file_size=10)},
            "is larger than 10 bytes (--endpoints-file)",
        ),
        (
            lambda path: path.write_text(GOOD),
            {"limits": Limits(values=3)},
            "more than 3 values, keys included; no more are allowed",
        ),
        (lambda path: path.write_text(GOOD), {"configures": True}, "no EndpointPickerConfig in it"),
        (lambda path: path.symlink_to("nowhere"), {}, "can't be read: No such file or directory (--endpoints-file)"),
        (os.mkfifo, {}, "can't be read: not a regular file (--endpoints-file)"),
    ],
    ids=["no UTF-8", "large", "many values", "no configuration", "a link to nowhere", "a pipe"],
)
async def test_what_cannot_be_read_is_rejected_once(
    tmp_path: Path, make: Callable[[Path], None], more: dict[str, Any], problem: str
) -> None:
    make(tmp_path / "a.yaml")
    reading = source(tmp_path / "a.yaml", **more)
    assert said(await reading.load()) == [("a.yaml", f"document: {problem}")]
    assert await reading.load() == []


async def test_a_directory_with_too_many_files_is_rejected(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.yaml").write_text(GOOD)
    assert said(await source(tmp_path, limits=Limits(files=1)).load()) == [
        (tmp_path.name, "document: 2 files; at most 1 are read (--endpoints-file)")
    ]


async def test_a_file_that_changes_while_it_is_read_is_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read the first time is half of the old and half of the new text, and must not be used."""
    read = files.read_bytes
    readings: list[bytes] = []

    def reading(origin: str, limit: int) -> bytes:
        data = read(origin, limit)
        if not readings:
            path.write_text(OTHER)
        readings.append(data)
        return data

    monkeypatch.setattr(files, "read_bytes", reading)
    assert said(await source(path).load()) == [("endpoints.yaml", "b")]
    assert len(readings) == 2


async def test_a_file_that_changes_all_the_time_is_rejected_at_the_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = files.read_bytes

    def reading(origin: str, limit: int) -> bytes:
        data = read(origin, limit)
        path.write_text(GOOD + "#" * (path.stat().st_size + 1))
        return data

    monkeypatch.setattr(files, "read_bytes", reading)
    monkeypatch.setattr(files, "UNSTEADY_WAIT", 0.0)
    assert said(await source(path).load()) == [
        ("endpoints.yaml", "document: changes all the time; a file should be replaced by rename")
    ]


async def test_a_file_that_is_not_watched_is_read_once(path: Path) -> None:
    reading = source(path, watched=False)
    assert said(await reading.load()) == [("endpoints.yaml", "a")]
    path.write_text(OTHER)
    assert await reading.load() == []
    path.unlink()
    assert await reading.load() == []
    path.write_text(OTHER)
    reading.set_object_kinds({NODE: None})
    assert said(await reading.load()) == [("endpoints.yaml", "b")], "for other objects"
    assert await reading.load() == []


async def test_a_root_that_is_no_longer_followed_takes_its_origins_along(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text(OTHER)
    reading = source(tmp_path / "a.yaml")
    await reading.load()
    reading.follow([Root(str(tmp_path / "b.yaml"), "--endpoints-file")])
    assert said(await reading.load()) == [("b.yaml", "b"), ("a.yaml", "removed")]


async def test_a_bad_configuration_is_rejected_with_the_lines_of_its_file(path: Path) -> None:
    path.write_text(
        GOOD + "---\napiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: no-such-plugin\n"
    )
    [event] = await source(path).load()
    assert isinstance(event, Rejected)
    [problem] = [each_problem for each_problem in event.problems if "no-such-plugin" in str(each_problem)]
    assert (problem.path, problem.line) == ("plugins[0].type", 7)


async def test_a_file_that_cannot_be_read_for_a_defect_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").write_text(OTHER)
    read = FileReader.read

    def fail(reader: FileReader, origin: str, data: bytes, **options: Any) -> Any:
        if origin.endswith("a.yaml"):
            raise ValueError("a defect")
        return read(reader, origin, data, **options)

    monkeypatch.setattr(FileReader, "read", fail)
    events = said(await source(tmp_path).load())
    assert events == [("a.yaml", "document: it can't be read: ValueError: a defect"), ("b.yaml", "b")]


@pytest.mark.parametrize("watched", [True, False])
async def test_a_file_that_the_system_cannot_read_for_now_is_read_at_the_next_look(
    path: Path, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = source(path, watched=watched)
    await files.load()
    path.write_text(OTHER)
    files.set_object_kinds({NODE: None})
    with monkeypatch.context() as patched:
        patched.setattr("services.watcher.files.read_bytes", Mock(side_effect=OSError(errno.EMFILE, "Too many files")))
        [event] = await files.load()
        assert isinstance(event, Rejected)
        assert await files.load() == []
    assert said(await files.load()) == [(path.name, "b")]
    assert await files.load() == []


async def test_of_files_that_are_not_watched_only_those_that_were_not_read_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(GOOD)
    (tmp_path / "b.yaml").symlink_to(tmp_path / "b")
    files = source(tmp_path, watched=False)
    [a, b] = said(await files.load())
    assert (a, b[0]) == (("a.yaml", "a"), "b.yaml")
    (tmp_path / "a.yaml").unlink()
    (tmp_path / "c.yaml").write_text(GOOD)
    assert await files.load() == []
    (tmp_path / "b").write_text(OTHER)
    assert said(await files.load()) == [("b.yaml", "b")]
    (tmp_path / "b").unlink()
    assert await files.load() == []


async def test_files_are_read_again_for_objects_that_somebody_wants_to_hear_of(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("endpoints: []\n")
    (tmp_path / "b.yaml").write_text("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n")
    files = source(tmp_path)
    assert files.confirmed_at(7.0) == 7.0
    assert [each.documents.objects for each in await files.load() if isinstance(each, Reset)] == [(), ()]
    assert files.set_object_kinds({NODE: None})
    events = [each_event for each_event in await files.load() if isinstance(each_event, Reset)]
    assert [[each_object.name for each_object in event.documents.objects] for event in events] == [[], ["n1"]]
    assert not files.set_object_kinds({NODE: None})
    assert await files.load() == []
    assert files.set_object_kinds({})
    assert [entry.documents.objects for entry in await files.load() if isinstance(entry, Reset)] == [(), ()]


async def test_a_file_that_has_gone_before_it_is_read_again_is_removed_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("endpoints: []\n")
    (tmp_path / "b.yaml").write_text("apiVersion: v1\nkind: Node\nmetadata: {name: n1}\n")
    files = source(tmp_path)
    await files.load()
    files.set_object_kinds({NODE: None})
    (tmp_path / "b.yaml").unlink()
    assert said(await files.load()) == [("a.yaml", ""), ("b.yaml", "removed")]
