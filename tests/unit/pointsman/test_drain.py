"""`pointsman drain` and `undrain`: what they change in the watcher's sources."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pointsman import drain, undrain
from pointsman.drain import DrainOptions, annotate
from services.watcher import drain_file
from services.watcher.documents import read_documents
from services.watcher.kubernetes.errors import Forbidden, NotFound
from shared.config.problems import Problems
from tests.fake_kubernetes.server import ApiServer, answer, refusal

BLOCK = """\
# our servers
endpoints:
- name: a   # the old one
  address: 10.0.0.1
  port: 8000
- address: 10.0.0.2
  port: 8000
  name: b
---
endpoints:
    - namespace: prod
      name: "b"
      address: 10.0.0.3
      port: 8000"""
FLOW = "endpoints: [{name: a, address: 10.0.0.1, port: 80}, {address: 10.0.0.2, name: b, port: 80}]\n"
SCALARS = """\
endpoints:
- address: 10.0.0.1
  port: 80
  name: >-
    a

- address: 10.0.0.2
  port: 80
  name: |-
    b"""
JSON = '{"endpoints": [\n  {"address": "10.0.0.1", "port": 80, "name": "a"}]}'


def draining(text: str) -> list[str]:
    problems = Problems()
    endpoints = read_documents(text, "x", problems).endpoints or ()
    assert not problems.errors
    return [endpoint.id for endpoint in endpoints if endpoint.draining]


@pytest.mark.parametrize(
    ("text", "name", "id"),
    [
        (BLOCK, "a", "default/a"),
        (BLOCK, "default/b", "default/b"),
        (BLOCK, "prod/b", "prod/b"),
        (FLOW, "a", "default/a"),
        (FLOW, "b", "default/b"),
        (JSON, "a", "default/a"),
        (BLOCK.replace("\n", "\r\n"), "a", "default/a"),
        (BLOCK.replace("\n", "\r\n"), "default/b", "default/b"),
        (BLOCK.replace("\n", "\u2028"), "a", "default/a"),
        (f"\ufeff{FLOW}", "a", "default/a"),
        (SCALARS, "a", "default/a"),
        (SCALARS, "b", "default/b"),
        (f"{SCALARS}\n\n", "b", "default/b"),
        ("endpoints:\r\n- address: 10.0.0.1\r\n  port: 80\r\n  name: a", "a", "default/a"),
    ],
)
def test_the_entry_is_changed_and_changed_back_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, name: str, id: str
) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(text, newline="")
    file.chmod(0o640)
    options = [name, "--endpoints-file", str(file)]
    assert drain.main(options) == 0
    edited = file.read_bytes().decode()
    assert draining(edited) == [id]
    assert edited.count("\n") - edited.count("\r\n") in (0, edited.count("\n")), "line breaks of one kind"
    assert file.stat().st_mode & 0o777 == 0o640
    assert drain.main(options) == 0
    assert undrain.main(options) == 0
    assert file.read_bytes().decode() == text
    assert undrain.main(options) == 0
    expected_output = [
        f"{id} is draining",
        f"{id} is draining already",
        f"{id} takes requests",
        f"{id} takes requests already",
    ]
    assert capsys.readouterr().out.splitlines() == [f"{line} ({file})" for line in expected_output]


@pytest.mark.parametrize("written", ["  drain: false\n", "  drain: no  # later\n"])
def test_a_value_that_is_there_is_changed(tmp_path: Path, written: str) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(BLOCK.replace("  port: 8000\n- ", f"  port: 8000\n{written}- "))
    assert drain.main(["a", "--endpoints-file", str(file)]) == 0
    assert draining(file.read_text()) == ["default/a"]
    assert "# the old one" in file.read_text()


@pytest.mark.parametrize("written", ["  drain: true\n- ", "  drain: true\n\n- "])
def test_a_line_that_somebody_else_wrote_is_removed(tmp_path: Path, written: str) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(BLOCK.replace("  port: 8000\n- ", f"  port: 8000\n{written}"))
    assert undrain.main(["a", "--endpoints-file", str(file)]) == 0
    assert file.read_text().replace("\n\n", "\n") == BLOCK


def test_drains_at_the_same_time_all_take_effect(tmp_path: Path) -> None:
    file = tmp_path / "endpoints.yaml"
    names = [f"e{number}" for number in range(12)]
    file.write_text("endpoints:\n" + "".join(f"- {{name: {name}, address: 10.0.0.1, port: 80}}\n" for name in names))
    with ThreadPoolExecutor(len(names)) as threads:
        list(threads.map(lambda name: drain_file.drain_in_files(str(file), name, True), names))
    assert draining(file.read_text()) == [f"default/{name}" for name in names]
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(("edits", "code"), [(2, 0), (drain_file.TRIES, 1)])
def test_what_an_editor_writes_meanwhile_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, edits: int, code: int
) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(FLOW)
    set_drain, left = drain_file.set_drain, iter(range(edits))

    def edit_meanwhile(text: str, id: str, drain: bool) -> str:
        if (edit := next(left, None)) is not None:
            file.write_text(f"{FLOW}# {edit}\n")
        return set_drain(text, id, drain)

    monkeypatch.setattr(drain_file, "set_drain", edit_meanwhile)
    assert drain.main(["a", "--endpoints-file", str(file)]) == code
    assert draining(file.read_text()) == ["default/a"][code:]
    assert file.read_text().endswith(f"# {edits - 1}\n")
    assert ("changes all the time" in capsys.readouterr().err) is bool(code)


def test_the_file_of_a_directory_is_found_and_links_stay(tmp_path: Path) -> None:
    real = tmp_path / "real.txt"
    real.write_text(BLOCK)
    folder = tmp_path / "endpoints"
    folder.mkdir()
    (folder / "1.yaml").write_text("endpoints: [{name: z, address: 10.0.0.9, port: 80}]")
    (folder / "2.yaml").symlink_to(real)
    assert drain.main(["a", "--endpoints-file", str(folder)]) == 0
    assert draining(real.read_text()) == ["default/a"]
    assert (folder / "2.yaml").is_symlink()


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (b"endpoints: [{name: z}]", "required, and missing"),
        (b"\xff", "b.yaml isn't UTF-8: "),
        (None, "b.yaml can't be read: No such file or directory"),
    ],
    ids=["invalid", "not UTF-8", "link to nothing"],
)
def test_a_broken_file_of_a_directory_concerns_only_what_no_other_file_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broken: bytes | None, says: str
) -> None:
    good = tmp_path / "a.yaml"
    good.write_text(BLOCK)
    if broken is None:
        (tmp_path / "b.yaml").symlink_to("nothing")
    else:
        (tmp_path / "b.yaml").write_bytes(broken)
    assert drain.main(["default/a", "--endpoints-file", str(tmp_path)]) == 0
    assert draining(good.read_text()) == ["default/a"]
    assert drain.main(["z", "--endpoints-file", str(tmp_path)]) == 1
    assert says in capsys.readouterr().err
    assert undrain.main(["a", "--endpoints-file", str(tmp_path)]) == 1
    assert "'a' may also be in a file with errors; give the id" in capsys.readouterr().err


def test_an_endpoint_in_two_files_of_a_directory_is_edited_in_neither(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / name for name in ("a.yaml", "b.yaml")]
    for file in files:
        file.write_text(BLOCK)
    assert drain.main(["a", "--endpoints-file", str(tmp_path)]) == 1
    assert f"default/a is in {files[0]} and {files[1]}; remove one" in capsys.readouterr().err
    assert [file.read_text() for file in files] == [BLOCK, BLOCK]


@pytest.mark.parametrize(
    ("name", "text", "expected_output"),
    [
        ("q", BLOCK, "has no endpoint 'q'"),
        ("default/aa", BLOCK, "did you mean 'default/a'?"),
        ("b", BLOCK, "'b' is the name of default/b and prod/b; give the id of one"),
        ("a", "endpoints: [{name: a}]", "endpoints[0].address: required, and missing"),
    ],
)
def test_what_cant_be_drained_is_said_and_nothing_changes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, expected_output: str
) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(text)
    assert drain.main([name, "--endpoints-file", str(file)]) == 1
    assert expected_output in capsys.readouterr().err
    assert file.read_text() == text


@pytest.mark.parametrize(
    ("command", "text"),
    [
        (undrain.main, 'endpoints: [{name: a, address: 10.0.0.1, port: 80, labels: {pointsman/drain: "true"}}]'),
        (drain.main, "endpoints:\n- ? name\n  : a\n  address: 10.0.0.1\n  port: 80\n"),
    ],
    ids=["label", "explicit key"],
)
def test_an_entry_that_cant_be_edited_is_left_to_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: Callable[[Sequence[str]], int], text: str
) -> None:
    file = tmp_path / "endpoints.yaml"
    file.write_text(text)
    assert command(["a", "--endpoints-file", str(file)]) == 1
    assert file.read_text() == text
    assert "set its `drain`, or its label, there" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--kubernetes", "--endpoints-file", "x"]])
def test_the_source_has_to_be_named(capsys: pytest.CaptureFixture[str], options: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        drain.main(["a", *options])
    assert ended.value.code == 2
    assert "one of --endpoints-file and --kubernetes is required" in capsys.readouterr().err


def test_a_file_that_isnt_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert drain.main(["a", "--endpoints-file", str(tmp_path / "none.yaml")]) == 1
    assert capsys.readouterr().err.startswith("pointsman drain: ")


@pytest.mark.parametrize(("name", "path"), [("vllm-0", "default/pods/vllm-0"), ("prod/vllm-1", "prod/pods/vllm-1")])
@pytest.mark.parametrize(("wanted", "value"), [(True, "true"), (False, None)])
async def test_a_pod_is_annotated(tmp_path: Path, name: str, path: str, wanted: bool, value: str | None) -> None:
    server = ApiServer()
    await server.start()
    try:
        server.next.append(answer(200, {"metadata": {"name": "x"}}))
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig")
        pod = await annotate(DrainOptions(name=name, kubernetes=True, kubeconfig=kubeconfig), wanted)
    finally:
        await server.stop()
    (seen,) = server.seen
    assert (seen.method, seen.path) == ("PATCH", f"/api/v1/namespaces/{path}")
    assert seen.headers["Content-Type"] == "application/merge-patch+json"
    assert seen.body == {"metadata": {"annotations": {"pointsman/drain": value}}}
    assert pod == path.replace("/pods", "")


async def test_the_id_of_an_endpoint_names_its_pod(tmp_path: Path) -> None:
    server = ApiServer()
    await server.start()
    try:
        server.next += [refusal(404, "NotFound"), answer(200, {"metadata": {"name": "x"}})]
        options = DrainOptions(
            name="prod/vllm-0-rank-1", kubernetes=True, kubeconfig=server.kubeconfig(tmp_path / "kubeconfig")
        )
        assert await annotate(options, True) == "prod/vllm-0"
        server.next.append(refusal(404, "NotFound"))
        with pytest.raises(NotFound):
            await annotate(DrainOptions(name="other", kubernetes=True, kubeconfig=options.kubeconfig), True)
        server.next.append(refusal(403, "Forbidden"))
        with pytest.raises(Forbidden):
            await annotate(options, True)
    finally:
        await server.stop()
