"""What the watcher's flags make it follow in a cluster."""

import pytest

from services.watcher.kubernetes.config_map import ConfigMapKey
from services.watcher.kubernetes.provider import pool_options
from services.watcher.settings import WatcherSettings
from shared.config.problems import Invalid
from shared.service.settings import parse


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
    [plan] = pool_options(settings(f"--config-map={flag}")).values()
    assert plan.config_map == found


def test_a_pool_has_its_own_config_map_or_the_one_of_all() -> None:
    plans = pool_options(settings("--pools=a,models/b=own,models/c=infra/config/c.yaml", "--config-map=config"))
    assert {pool.name: plan.config_map for pool, plan in plans.items()} == {
        "a": ConfigMapKey("serving", "config"),
        "b": ConfigMapKey("models", "own"),
        "c": ConfigMapKey("infra", "config", "c.yaml"),
    }
    plans = pool_options(settings("--pools=a,b=own"))
    assert [plan.config_map for plan in plans.values()] == [None, ConfigMapKey("serving", "own")]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        *((f"--config-map={name}", f"--config-map: '{name}' names") for name in ("/", "a/", "/a", "a/b/", "a/b/c/d")),
        ("--config-map=a --config-file=b", "--config-map: a ConfigMap can't be given together"),
        ("--pools=a=b --config-file=c", "--pools: a ConfigMap can't be given together"),
        ("--endpoints-file=a", "--endpoints-file: can't be given together"),
        ("--endpoint-selector=a=b", "--endpoint-target-ports: required"),
        ("--endpoint-target-ports=1", "--endpoint-selector: required"),
        ("--endpoint-selector=a=b --endpoint-target-ports=1,1", "--endpoint-target-ports: port 1 is given twice"),
        ("--endpoint-selector=a --endpoint-target-ports=1", "--endpoint-selector: 'a' is no label"),
        ("--pools=a,b --endpoint-slices=s", "--endpoint-slices: is for one pool, and --pools names 2"),
        ("--keep-unreachable --endpoint-slices=s", "--keep-unreachable: is for pods"),
        ("--pools=a/b/c", "--pools: 'a/b/c' is no pool"),
        ("--pools=a=", "--pools: 'a=' is no pool"),
        ("--pools=a=b/", "--pools: 'b/' names no ConfigMap"),
        ("--pools=a,serving/a", "--pools: 'serving/a' is given twice"),
        ("--pools=a,serving/a=b", "--pools: 'serving/a=b' is given twice"),
    ],
)
def test_settings_that_make_no_sense_are_refused(flags: str, problem: str) -> None:
    with pytest.raises(Invalid, match=f"^{problem}"):
        pool_options(settings(*flags.split()))
