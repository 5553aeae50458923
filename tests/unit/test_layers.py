"""The import rules of pyproject.toml's `[tool.importlinter]`: a violation is shown with the chain of imports."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("shared", "services", "pointsman")


def lint(folder: Path) -> tuple[bool, str]:
    """(whether all rules are kept, what import-linter says)."""
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [str(command), "--no-cache", "--config", "pyproject.toml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    return done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages, to be spoiled."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_the_import_rules_are_kept() -> None:
    kept, said = lint(ROOT)
    assert kept, said


@pytest.mark.parametrize(
    ("file", "imported", "chain"),
    [
        (
            "services/picker/names.py",
            "services.collector.schedule",
            "services.picker.names -> services.collector.schedule (l.",
        ),
        ("services/watcher/eds.py", "services.simulator.app", "services.watcher.eds -> services.simulator.app (l."),
        ("shared/model.py", "services.picker.names", "shared.model -> services.picker.names (l."),
        ("shared/version.py", "pointsman.cli", "shared.version -> pointsman.cli (l."),
        ("services/collector/page/scan.py", "pointsman.cli", "services.collector.page.scan -> pointsman.cli (l."),
        ("shared/config/decode.py", "asyncio", "shared.config.decode -> asyncio (l."),
        ("services/picker/extproc/names.py", "grpc", "services.picker.extproc.names -> grpc (l."),
        ("services/picker/requests/request.py", "socket", "services.picker.requests.request -> socket (l."),
        ("services/picker/scheduling/cycle.py", "nats", "services.picker.scheduling.cycle -> nats (l."),
        ("services/picker/state/view.py", "time", "services.picker.state.view -> time (l."),
        ("services/picker/state/layout.py", "shared.bus.connection", "shared.bus.connection -> nats (l."),
        ("services/picker/extproc/names.py", "services.picker.director", "services.picker.extproc.names ->"),
        ("shared/plugin.py", "shared.config.loader", "shared.plugin -> shared.config.loader (l."),
    ],
)
def test_an_import_that_breaks_a_rule_is_shown_with_its_chain(copy: Path, file: str, imported: str, chain: str) -> None:
    with (copy / file).open("a", encoding="utf-8") as module:
        module.write(f"\nimport {imported}\n")
    kept, said = lint(copy)
    assert not kept
    assert chain in " ".join(said.split())
