"""`python -m pointsman.release`: everything that publishing a version needs, in `dist/`; nothing is pushed.

The version is that of the tag `v…` on the commit. The files are made of the commit, not of the working tree.
`--rehearse` needs no tag and takes the version of the code; `--without image,chart` leaves out what this machine can't
make.
"""

import argparse
import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml

from pointsman.docs import ROOT
from shared.version import VERSION

PARTS = ("packages", "sbom", "image", "chart")
TOOLS = ("build", "cyclonedx-bom")
"""Of PyPI, in a virtual environment of their own."""


_TAG = re.compile(r"v\d+\.\d+\.\d+(?:[^\d\s]\S*)?")
_HEADINGS = re.compile(r"^## ", re.MULTILINE)


class ReleaseError(Exception):
    """What stands against the release, and what helps."""


def changes(changelog: str, version: str) -> str:
    """The section of a version, without its heading. Raises ReleaseError."""
    return _section(changelog, version)[1].strip() + "\n"


def _section(changelog: str, version: str) -> tuple[str, str]:
    """(the heading, what follows it). Raises ReleaseError."""
    for section in _HEADINGS.split(changelog)[1:]:
        heading, _, text = section.partition("\n")
        if heading.split()[:1] == [version]:
            return heading, text
    raise ReleaseError(f"CHANGELOG.md has no section '## {version}'")


def disagreements(root: Path, version: str) -> list[str]:
    """Files that name another version than this."""
    chart = yaml.safe_load((root / "deploy/kubernetes/chart/Chart.yaml").read_text(encoding="utf-8"))
    compose = yaml.safe_load((root / "docker-compose.yml").read_text(encoding="utf-8"))
    dockerfile = (root / "deploy/Dockerfile").read_text(encoding="utf-8")
    (argument,) = re.findall(r"^ARG VERSION=(.+)$", dockerfile, re.MULTILINE)
    named: dict[str, str] = {
        "the chart's version": chart["version"],
        "the chart's appVersion": chart["appVersion"],
        "deploy/Dockerfile's VERSION": argument,
    }
    for name, service in compose["services"].items():
        image, _, tag = service["image"].partition(":")
        if image == "pointsman":
            named[f"docker-compose.yml's image of {name}"] = tag
    for path in sorted((root / "deploy/kubernetes/base").glob("*.yaml")):
        for tag in re.findall(r"image: pointsman:(\S+)", path.read_text(encoding="utf-8")):
            named[f"the image in {path.name} of the Kustomize base"] = tag
    return [f"{what} is {found}, not {version}" for what, found in named.items() if found != version]


def checksums(directory: Path) -> str:
    """Lines for `sha256sum --check`."""
    files = sorted(path for path in directory.iterdir() if path.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def release(target: Path, version: str, parts: Sequence[str], *, python: str, helm: str) -> None:
    """Make the files of the commit. Raises ReleaseError and subprocess.CalledProcessError."""
    revision, moment = _run("git", "log", "-1", "--format=%H %ct").split()
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="pointsman-release-") as name:
        tree, environments = Path(name, "tree"), Path(name, "environments")
        tree.mkdir()
        archive = Path(name, "tree.tar")
        _run("git", "archive", "--output", str(archive), "HEAD")
        _run("tar", "--extract", "--file", str(archive), "--directory", str(tree))
        if wrong := disagreements(tree, version):
            raise ReleaseError("; ".join(wrong))
        notes = changes((tree / "CHANGELOG.md").read_text(encoding="utf-8"), version)
        (target / f"pointsman-{version}-changes.md").write_text(notes, encoding="utf-8")
        clock = {"SOURCE_DATE_EPOCH": moment}  # the same commit makes the same files
        if "packages" in parts or "sbom" in parts:
            tools = _environment(environments / "tools", python, *TOOLS)
            if "packages" in parts:
                _run(str(tools), "-m", "build", "--outdir", str(target), str(tree), env=clock)
            if "sbom" in parts:
                constraints = ("--constraint", str(tree / "constraints.txt"))
                ours = _environment(environments / "ours", python, *constraints, str(tree), pip=False)
                file = str(target / f"pointsman-{version}-sbom.cdx.json")
                described = ("--output-format", "JSON", "--output-reproducible", "--output-file", file)
                _run(str(tools), "-m", "cyclonedx_py", "environment", *described, str(ours))
        if "image" in parts:
            _image(tree, target / f"pointsman-{version}-image.tar.gz", version, revision)
        if "chart" in parts:
            _run(helm, "package", str(tree / "deploy/kubernetes/chart"), "--destination", str(target))
            chart = target / f"pointsman-{version}.tgz"
            chart.rename(target / f"pointsman-{version}-chart.tgz")
    (target / "SHA256SUMS").write_text(checksums(target), encoding="utf-8")


def _image(tree: Path, file: Path, version: str, revision: str) -> None:
    named = f"pointsman:{version}"
    arguments = [
        word for setting in (f"VERSION={version}", f"REVISION={revision}") for word in ("--build-arg", setting)
    ]
    host = ("--network", "host")
    _run("docker", "build", *host, *arguments, "--file", str(tree / "deploy/Dockerfile"), "--tag", named, str(tree))
    with subprocess.Popen(["docker", "save", named], stdout=subprocess.PIPE) as saving:
        assert saving.stdout is not None
        with gzip.GzipFile(file, "wb", mtime=0) as packed:
            shutil.copyfileobj(saving.stdout, packed)
    if saving.returncode:
        raise ReleaseError(f"docker save {named} ended with {saving.returncode}")


def _environment(directory: Path, python: str, *packages: str, pip: bool = True) -> Path:
    """The Python of a new virtual environment with these packages, in the end with or without pip."""
    _run(python, "-m", "venv", str(directory))
    binary = directory / "bin" / "python"
    _run(str(binary), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages)
    if not pip:
        _run(str(binary), "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools", "pip")
    return binary


def _run(*command: str, env: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def _tagged() -> str:
    """The version of the commit's tag. Raises ReleaseError."""
    tags = [tag for tag in _run("git", "tag", "--points-at", "HEAD").split() if _TAG.fullmatch(tag)]
    if len(tags) != 1:
        raise ReleaseError(f"the commit has {len(tags)} tags v…, not one: `git tag v{VERSION}`, or --rehearse")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    heading, _ = _section(changelog, tags[0][1:])
    if "unreleased" in heading:
        raise ReleaseError(f"CHANGELOG.md still says {heading!r}")
    return tags[0][1:]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m pointsman.release", description=__doc__)
    parser.add_argument("--rehearse", action="store_true", help="without a tag")
    parser.add_argument("--without", default="", help=f"parts to leave out, of {','.join(PARTS)}")
    parser.add_argument("--helm", default="helm", help="the helm command")
    parser.add_argument("--python", default=sys.executable, help="the Python that makes virtual environments")
    parser.add_argument("--target", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    left_out = {part for part in given.without.split(",") if part}
    try:
        if unknown := left_out - set(PARTS):
            raise ReleaseError(f"--without: {', '.join(sorted(unknown))} isn't one of {', '.join(PARTS)}")
        parts = [part for part in PARTS if part not in left_out]
        version = VERSION if given.rehearse else _tagged()
        release(given.target, version, parts, python=given.python, helm=given.helm)
    except ReleaseError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    except subprocess.CalledProcessError as error:
        print(f"release: {' '.join(error.cmd)} ended with {error.returncode}", file=sys.stderr)
        return 1
    except FileNotFoundError as error:
        print(f"release: {error.filename} isn't installed", file=sys.stderr)
        return 1
    for path in sorted(given.target.iterdir()):
        print(f"{path.stat().st_size:>12,}  {path.name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
