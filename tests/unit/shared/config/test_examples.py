"""Documents in the shapes that deployments, charts and guides of all generations publish.

Each is judged twice: with the types that are installed it names those that aren't, at their places, and nothing else;
with stand-ins for these it loads, and comes to what it says.
"""

import pytest

from shared.config import Invalid, LoadedConfig, load
from shared.config.loaded import SourceSpec
from shared.plugin import Registry
from tests.unit.shared.config import examples_gie, examples_llm_d
from tests.unit.shared.config.examples import Example
from tests.unit.shared.config.stand_ins import completed, missing

REGISTRY = Registry.installed()
EXAMPLES = {**examples_llm_d.EXAMPLES, **examples_gie.EXAMPLES}

every_example = pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES)


def loaded(example: Example) -> LoadedConfig:
    return load(example.text, completed(example.text, REGISTRY))


def members(config: LoadedConfig) -> dict[str, str]:
    return {
        profile.name: " ".join(
            one.plugin.name if one.weight == 1 else f"{one.plugin.name}={one.weight:g}" for one in profile.members
        )
        for profile in config.profiles
    }


@every_example
def test_types_that_arent_installed_are_named_at_their_places_and_nothing_else_is_wrong(example: Example) -> None:
    absent = missing(example.text, REGISTRY)
    if not absent:
        load(example.text, REGISTRY)
        return
    with pytest.raises(Invalid) as caught:
        load(example.text, REGISTRY)
    found = {problem.path: problem.message.split("'")[1] for problem in caught.value.problems}
    assert found == absent
    assert all("is no plugin type that is installed" in one.message for one in caught.value.problems)


@every_example
def test_profiles_have_the_members_and_weights_that_are_written(example: Example) -> None:
    config = loaded(example)
    assert members(config) == dict(example.profiles)
    assert config.profile_handler == example.handler


@every_example
def test_only_what_is_written_the_former_way_is_warned_of(example: Example) -> None:
    assert tuple(str(one) for one in loaded(example).warnings) == example.warnings


@every_example
def test_what_a_document_leaves_out_is_added(example: Example) -> None:
    config = loaded(example)
    assert config.sources == tuple(SourceSpec(source, extractors) for source, extractors in example.sources)
    assert config.parsers == example.parsers
    assert config.saturation_detector == example.detector


@every_example
def test_parameters_reach_the_plugin_that_has_them_now(example: Example) -> None:
    plugins = loaded(example).plugins
    found = {
        name: {field: getattr(plugins[name].parameters, field) for field in given}
        for name, given in example.parameters.items()
    }
    assert found == {name: dict(given) for name, given in example.parameters.items()}
