"""docs/endpoints-file.md and docs/kubernetes.md say what the program does."""

import re
from pathlib import Path

import pytest

from services.watcher.app import WatcherService
from services.watcher.documents import read_documents
from services.watcher.kubernetes.settings import KubernetesSettings
from services.watcher.plugins import FileDiscovery
from services.watcher.settings import WatcherSettings
from shared.config.problems import Problems
from shared.service.settings import describe

PAGE_FILE = Path(__file__).parents[4] / "docs" / "endpoints-file.md"
PAGE = PAGE_FILE.read_text()
CLUSTER_PAGE = PAGE_FILE.with_name("kubernetes.md").read_text()
CLUSTER = {
    *("--kubernetes", "--kubeconfig", "--kubeconfig-context", "--pools", "--config-map", "--endpoint-selector"),
    *("--endpoint-target-ports", "--endpoint-slices", "--ip-family", "--keep-unreachable"),
}
OTHERS = {flag for flag, *_ in describe(KubernetesSettings)} | CLUSTER
OWN = [each for each in describe(WatcherSettings) if each[0] not in OTHERS]
EXAMPLES = [text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "clusters:" not in text]


@pytest.mark.parametrize(("flag", "default"), [(flag, default) for flag, _, default, _ in OWN])
def test_every_setting_is_listed_with_its_default(flag: str, default: str) -> None:
    [row] = [line for line in PAGE.splitlines() if line.startswith(f"| `{flag}` |")]
    shown = row.split("|")[2].strip().strip("`")
    assert shown in (default, "16Mi" if default == str(16 * 2**20) else default)


@pytest.mark.parametrize("flag", sorted(CLUSTER))
def test_what_a_cluster_is_chosen_by_is_explained(flag: str) -> None:
    assert flag in {entry[0] for entry in describe(WatcherSettings)}
    assert f"`{flag}`" in CLUSTER_PAGE


@pytest.mark.parametrize("text", EXAMPLES)
def test_every_example_is_read(text: str) -> None:
    problems = Problems()
    documents = read_documents(text, "docs", problems)
    assert problems.errors == []
    assert documents.facts()


@pytest.mark.parametrize("field", FileDiscovery.Parameters.__struct_encode_fields__)
def test_every_parameter_of_file_discovery_is_listed(field: str) -> None:
    assert f"| `{field}` |" in PAGE


def test_every_metric_is_listed() -> None:
    service = WatcherService(WatcherSettings())
    names = {
        sample.name.removeprefix("pointsman_watcher")
        for family in service.registry.collect()
        for sample in family.samples
        if sample.name.startswith("pointsman_watcher") and not sample.name.endswith("_created")
    }
    assert [name for name in sorted(names) if name not in PAGE] == []
