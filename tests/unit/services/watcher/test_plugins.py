"""The `file-discovery` type in a configuration."""

import pytest

from services.watcher.configuration import discovery
from services.watcher.plugins import FileDiscovery
from shared.config.loader import load
from shared.config.problems import Invalid
from shared.plugin import Registry

CONFIG = """
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- name: files
  type: file-discovery
  parameters: {parameters}
dataLayer:
  discovery: {{pluginRef: files}}
"""


def loaded(parameters: str) -> FileDiscovery | None:
    return discovery(load(CONFIG.format(parameters=parameters), Registry.installed()))


def test_a_file_is_watched_unless_the_configuration_says_otherwise() -> None:
    plugin = loaded("{path: /etc/endpoints.yaml}")
    assert plugin is not None
    assert (plugin.path, plugin.watch_file) == ("/etc/endpoints.yaml", True)
    unwatched = loaded("{path: /etc/endpoints.yaml, watchFile: false}")
    assert unwatched is not None
    assert not unwatched.watch_file


@pytest.mark.parametrize("parameters", ["{}", "{path: ''}", "{path: [a]}", r'{path: "a\0b"}', "{path: a, watch: true}"])
def test_bad_parameters_are_refused(parameters: str) -> None:
    with pytest.raises(Invalid, match=r"plugins\[0\]\.parameters"):
        loaded(parameters)


def test_a_configuration_without_discovery_names_no_file() -> None:
    assert discovery(load("", Registry.installed())) is None
    assert discovery(None) is None
