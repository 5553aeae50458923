"""A document in the style of each published release: all load, and say what to write now.

Releases are told apart by the API group, the sections and gates that they had, and where parameters stood.
"""

import pytest
import yaml

from shared.config import Invalid, LoadedConfig, load
from shared.plugin import Registry
from tests.unit.shared.config import releases_gie, releases_llm_d
from tests.unit.shared.config.releases import Release

REGISTRY = Registry.installed()
RELEASES = {**releases_gie.RELEASES, **releases_llm_d.RELEASES}

every_release = pytest.mark.parametrize("release", RELEASES.values(), ids=RELEASES)


def loaded(release: Release) -> LoadedConfig:
    return load(release.text, REGISTRY)


@every_release
def test_a_release_loads_and_what_it_wrote_otherwise_is_said_with_what_to_write_now(release: Release) -> None:
    assert tuple(map(str, loaded(release).warnings)) == release.warnings


@every_release
def test_plugins_run_under_the_names_that_the_release_gives_them(release: Release) -> None:
    document = yaml.safe_load(release.text)
    written = [
        [(ref["pluginRef"], ref.get("weight", 1)) for ref in profile["plugins"]]
        for profile in document["schedulingProfiles"]
    ]
    profiles = [[(one.plugin.name, one.weight) for one in profile.members] for profile in loaded(release).profiles]
    assert [members[: len(given)] for members, given in zip(profiles, written, strict=True)] == written


@every_release
def test_what_no_release_knew_is_an_error_that_names_what_is_right(release: Release) -> None:
    assert release.text.count(release.slip[0]) == 1
    with pytest.raises(Invalid) as caught:
        load(release.text.replace(*release.slip), REGISTRY)
    assert release.said in caught.value.lines()
