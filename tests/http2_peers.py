"""Clients of HTTP/2 that aren't ours, and where they come from: Go installs h2spec, the conformance test of servers,
and builds a client that uses its gRPC, once for each user and version; nghttp and h2load are a package of Debian.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.kubernetes.deploy.tools import Tool, find_or_install
from tests.kubernetes.peers import Environment, Go, PeersMissing, Report, executable, find_go, kept, only_one, which

REQUIRE = "POINTSMAN_REQUIRE_HTTP2_PEERS"
"""Set to 1: tests that can't have them fail, instead of being skipped."""
H2SPEC = Tool("h2spec", "github.com/summerwind/h2spec/cmd/h2spec", "2.2.1+incompatible", {"h2spec": ()})
GO_CLIENT = Path(__file__).with_name("go_client")
"""The sources of ours."""

T = TypeVar("T")


def found(find: Callable[[Report], T]) -> T:
    """What `find` returns. Without it the test is skipped, or fails where none may be missed."""
    try:
        return find(print)
    except PeersMissing as error:
        if os.environ.get(REQUIRE) == "1":
            pytest.fail(f"{REQUIRE} is set: {error}", pytrace=False)
        pytest.skip(str(error).partition("\n")[0])


def find_h2spec(report: Report) -> tuple[str, ...]:
    """Its command. Raises PeersMissing."""
    return find_or_install(H2SPEC, report)


def find_go_client(report: Report, environment: Environment | None = None) -> Path:
    """The client that gRPC for Go makes, built when it isn't in the cache. Raises PeersMissing."""
    environment = os.environ if environment is None else environment
    sources = [GO_CLIENT / name for name in ("main.go", "go.mod", "go.sum")]
    version = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()[:12]
    target = kept(f"go-client-{version}", environment) / "client"
    if executable(target):
        return target
    if (go := find_go(environment)) is None:
        raise PeersMissing("the client that uses gRPC for Go isn't built yet, and there is no Go: https://go.dev/dl")
    try:
        _build(target, sources, go, report, environment)
    except OSError as error:
        raise PeersMissing(f"{target.parent}, where the Go client is kept: {error}") from error
    return target


def find_nghttp(report: Report) -> dict[str, Path]:
    """nghttp and h2load, by name. Raises PeersMissing."""
    places = {name: which(name, os.environ) for name in ("nghttp", "h2load")}
    there = {name: place for name, place in places.items() if place is not None}
    if len(there) < len(places):
        raise PeersMissing(f"{' and '.join(places.keys() - there)} not in PATH: apt-get install nghttp2-client")
    return there


def _build(target: Path, sources: list[Path], go: Path, report: Report, environment: Environment) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with only_one(target.parent / "building", "the Go client", report):
        if executable(target):
            return
        report(f"building the client that uses gRPC for Go into {target.parent}: a minute, and only once")
        with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent, ignore_cleanup_errors=True) as name:
            for source in sources:
                shutil.copy(source, name)
            Go(go, Path(name), environment, "the Go client")("build", "-trimpath", "-ldflags", "-s -w", "-o", "client")
            (Path(name) / "client").replace(target)
