"""What the watcher's flags make it follow in a cluster."""

import pytest

from services.watcher.kubernetes.origin import plans
from services.watcher.kubernetes.source import ConfigMapKey
from services.watcher.settings import WatcherSettings
from shared.config.problems import Invalid
from shared.service import parse


def settings(*flags: str) -> WatcherSettings:
    return parse(
        WatcherSettings, ["--kubernetes", "--pool-namespace=serving", "--pool-name=llama", *flags], {}, "watcher"
    )


@pytest.mark.parametrize(
    ("flag", "found"),
    [
        ("config", ConfigMapKey("serving", "config", "")),
        ("infra/config", ConfigMapKey("infra", "config", "")),
        ("infra/config/pool.yaml", ConfigMapKey("infra", "config", "pool.yaml")),
    ],
)
def test_a_config_map_goes_by_its_name_with_its_namespace_and_key_where_they_are_given(
    flag: str, found: ConfigMapKey
) -> None:
    [plan] = plans(settings(f"--config-map={flag}")).values()
    assert plan.config_map == found


@pytest.mark.parametrize("flag", ["/", "a/", "/a", "a/b/", "a/b/c/d"])
def test_what_is_no_config_map_is_refused(flag: str) -> None:
    with pytest.raises(Invalid, match=f"^--config-map: '{flag}' names no ConfigMap"):
        plans(settings(f"--config-map={flag}"))
