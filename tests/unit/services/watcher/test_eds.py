"""Envoy's EDS file."""

import os
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import discovery_pb2
from google.protobuf import json_format

from services.watcher.app import WatcherService
from services.watcher.eds import MAX_FILE, EdsFile, render
from services.watcher.settings import WatcherSettings
from shared.config.problems import Invalid
from shared.model import ROLE, Endpoint

_discovery: Any = discovery_pb2
_endpoint: Any = endpoint_pb2


def endpoint(name: str, address: str = "10.0.0.1", port: int = 80) -> Endpoint:
    return Endpoint(id=f"default/{name}", name=name, address=address, port=port)


def hosts(content: bytes) -> list[tuple[str, int]]:
    """The endpoints in the file as Envoy's own types read them: an unknown field is an error."""
    response = json_format.Parse(content, _discovery.DiscoveryResponse())
    [resource] = response.resources
    assignment = _endpoint.ClusterLoadAssignment()
    assert resource.Unpack(assignment)
    assert assignment.cluster_name == "model-servers"
    return [
        (host.endpoint.address.socket_address.address, host.endpoint.address.socket_address.port_value)
        for locality in assignment.endpoints
        for host in locality.lb_endpoints
    ]


def test_the_file_is_a_discovery_response_of_the_endpoints() -> None:
    content = render([endpoint("a"), endpoint("b", "fd00::1", 8000)], "model-servers")
    assert hosts(content) == [("10.0.0.1", 80), ("fd00::1", 8000)]


def test_a_draining_endpoint_is_known_to_envoy_as_such() -> None:
    drained = msgspec.structs.replace(endpoint("b", port=81), draining=True)
    content = render([endpoint("a"), drained], "model-servers")
    assert hosts(content) == [("10.0.0.1", 80), ("10.0.0.1", 81)]
    (assignment,) = msgspec.json.decode(content)["resources"]
    assert [host.get("health_status") for host in assignment["endpoints"][0]["lb_endpoints"]] == [None, "DRAINING"]


@pytest.mark.parametrize(
    ("roles", "priorities"),
    [
        (["prefill", "decode", "encode", "prefill-decode", "encode-prefill", None], [1, 0, 1, 0, 1, 0]),
        (["prefill", "encode"], [0, 0]),
        ([], []),
    ],
)
def test_envoy_prefers_servers_that_answer_clients(roles: list[str | None], priorities: list[int]) -> None:
    endpoints = [
        msgspec.structs.replace(endpoint(str(at), port=80 + at), labels={} if role is None else {ROLE: role})
        for at, role in enumerate(roles)
    ]
    (assignment,) = msgspec.json.decode(render(endpoints, "c"))["resources"]
    found = {
        host["endpoint"]["address"]["socket_address"]["port_value"]: group["priority"]
        for group in assignment["endpoints"]
        for host in group["lb_endpoints"]
    }
    assert found == {80 + at: priority for at, priority in enumerate(priorities)}


def test_the_text_depends_on_nothing_but_where_the_endpoints_are() -> None:
    each, other = endpoint("a"), endpoint("b", "10.0.0.2")
    labelled, second = msgspec.structs.replace(each, labels={"x": "y"}), endpoint("second")
    texts = {render(them, "c") for them in ([each, other], [other, each], [labelled, other], [each, other, second])}
    assert len(texts) == 1
    former, latter = (msgspec.json.decode(render([endpoint("a", port=port)], "c")) for port in (80, 81))
    assert former["version_info"] != latter["version_info"]


def test_the_file_is_replaced_and_never_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "eds.json"
    file = EdsFile(str(path))
    assert file.write(b"first") is True
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "everybody may read it"
    with path.open("rb") as reader:
        assert file.write(b"second") is True
        assert reader.read() == b"first"
    assert path.read_bytes() == b"second"


def test_the_parts_that_a_killed_watcher_has_left_are_removed(tmp_path: Path) -> None:
    parts = [tmp_path / f".eds[1].json.{number:08x}" for number in range(3)]
    others = [tmp_path / name for name in (".eds.json.00000000", ".eds[1].json.swp", ".eds[1].json.notahexa")]
    for part in (*parts, *others):
        part.touch()
    for part in (*parts[:2], *others):
        os.utime(part, (0, 0))
    EdsFile(str(tmp_path / "eds[1].json")).write(b"{}")
    assert {path.name for path in tmp_path.iterdir()} == {"eds[1].json", *(path.name for path in (parts[2], *others))}


def test_an_unchanged_file_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "eds.json"
    EdsFile(str(path)).write(b"content")
    before = path.stat().st_ino
    file = EdsFile(str(path))
    assert (file.write(b"content"), file.write(b"content")) == (False, False)
    assert path.stat().st_ino == before
    path.unlink()
    assert file.write(b"content") is True


def full_disk(*_: object) -> None:
    raise OSError(28, "No space left on device")


FIRST, SECOND = render([endpoint("a")], "c"), render([endpoint("a", "10.0.0.2")], "c")


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b"[" * 100_000,
        b'{"version_info": 1, "resources": []}',
        b'{"resources": [{}]}',
        FIRST[:-10],
        FIRST.replace(b"10.0.0.1", b"10.0.0.7"),
    ],
)
@pytest.mark.parametrize("replaced", [True, False])
def test_what_somebody_else_has_written_is_replaced(foreign: bytes, replaced: bool, tmp_path: Path) -> None:
    path = tmp_path / "eds.json"
    file = EdsFile(str(path))
    file.write(FIRST)
    if replaced:
        path.unlink()
    path.write_bytes(foreign)
    os.utime(path, (0, 0))
    assert (file.write(FIRST), path.read_bytes()) == (True, FIRST)
    assert file.write(FIRST) is False


def test_what_somebody_else_has_written_is_replaced_once_that_is_possible(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "eds.json"
    file = EdsFile(str(path))
    file.write(FIRST)
    path.write_bytes(b"{}")
    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full_disk)
        for _ in range(2):
            with pytest.raises(OSError, match="No space left"):
                file.write(FIRST)
    assert (file.write(FIRST), path.read_bytes()) == (True, FIRST)


@pytest.mark.parametrize("odd", ["pipe", "large file"])
def test_what_would_keep_the_writer_is_replaced_unread(odd: str, tmp_path: Path) -> None:
    path = tmp_path / "eds.json"
    file = EdsFile(str(path))
    file.write(FIRST)
    path.unlink()
    if odd == "pipe":
        os.mkfifo(path)
    else:
        path.touch()
        os.truncate(path, MAX_FILE + 1)
    assert (file.write(FIRST), path.read_bytes()) == (True, FIRST)


def test_what_another_watcher_has_written_stays_until_the_endpoints_change(tmp_path: Path) -> None:
    """It may know them better, and would replace ours again."""
    path = tmp_path / "eds.json"
    file, other = EdsFile(str(path)), EdsFile(str(path))
    assert (file.write(FIRST), other.write(SECOND)) == (True, True)
    assert (file.write(FIRST), file.write(FIRST), path.read_bytes()) == (False, False, SECOND)
    assert (file.write(SECOND), other.write(SECOND)) == (False, False)
    assert (file.write(FIRST), path.read_bytes()) == (True, FIRST)


def test_what_can_not_be_written_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "eds.json"
    file = EdsFile(str(path))
    file.write(b"first")
    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        file.write(b"second")
    assert path.read_bytes() == b"first"
    assert [each_path.name for each_path in tmp_path.iterdir()] == ["eds.json"]
    monkeypatch.undo()
    assert file.write(b"second") is True


@pytest.mark.parametrize("lacking", [os.W_OK, os.X_OK])
def test_a_directory_that_nothing_can_be_written_to_is_told_of(
    lacking: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = EdsFile(str(tmp_path / "eds.json"))
    file.check()
    monkeypatch.setattr("os.access", lambda path, mode: not mode & lacking)
    with pytest.raises(PermissionError):
        file.check()


async def test_a_watcher_writes_a_file_before_it_looks_for_the_cluster(tmp_path: Path) -> None:
    """Envoy doesn't start without one, whatever is wrong with the credentials."""
    eds, kubeconfig = tmp_path / "eds.json", tmp_path / "nowhere"
    service = WatcherService(
        WatcherSettings(kubernetes=True, kubeconfig=str(kubeconfig), pools=("default/pool",), eds_file=str(eds))
    )
    with pytest.raises(Invalid, match="--kubeconfig"):
        await service.start()
    assert hosts(eds.read_bytes()) == []
