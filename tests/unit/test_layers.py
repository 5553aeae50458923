"""The import rules of pyproject.toml's `[tool.importlinter]`: a violation is shown with the chain of imports."""

import shutil
import subprocess
import sys
from pathlib import Path

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


def test_the_import_rules_are_kept() -> None:
    kept, output = lint(ROOT)
    assert kept, output


BROKEN = {
    "services/picker/metadata.py": ("services.collector.schedule", "services.collector.schedule (l."),
    "services/watcher/eds.py": ("services.simulator.app", "services.simulator.app (l."),
    "shared/model.py": ("services.picker.metadata", "services.picker.metadata (l."),
    "shared/version.py": ("pointsman.cli", "pointsman.cli (l."),
    "services/collector/page/scan.py": ("pointsman.cli", "pointsman.cli (l."),
    "shared/config/decode.py": ("asyncio", "asyncio (l."),
    "services/picker/extproc/outgoing.py": ("grpc", "grpc (l."),
    "services/picker/request.py": ("socket", "socket (l."),
    "services/picker/scheduling/cycle.py": ("nats", "nats (l."),
    "services/picker/state/view.py": ("time", "time (l."),
    "services/picker/state/layout.py": ("shared.bus.connection", "shared.bus.connection (l."),
    "services/picker/extproc/refusals.py": ("services.picker.director", ""),
    "shared/plugin.py": ("shared.config.loader", "shared.config.loader (l."),
}
"""What a file must not import, and the next step of the chain that is shown."""


def test_imports_that_break_a_rule_are_shown_with_their_chains(tmp_path: Path) -> None:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file, (imported, _) in BROKEN.items():
        with (tmp_path / file).open("a", encoding="utf-8") as module:
            module.write(f"\nimport {imported}\n")
    kept, output = lint(tmp_path)
    assert not kept
    chains = " ".join(output.split())
    missing = [
        file
        for file, (_, step) in BROKEN.items()
        if f"{file.removesuffix('.py').replace('/', '.')} -> {step}" not in chains
    ]
    assert not missing
