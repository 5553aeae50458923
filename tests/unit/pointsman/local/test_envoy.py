"""A configuration of deploy/envoy is fitted to a place, and nothing else of it changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pointsman.local.envoy import GATEWAY, STANDALONE, ConfigurationError, EnvoyPlaces, PickerAddress, fit, load

ROOT = Path(__file__).parents[4]
PLACES = EnvoyPlaces(
    port=1,
    admin_port=2,
    stats_port=3,
    pickers=(PickerAddress(4, 5), PickerAddress(6, 7, "127.0.0.2"), PickerAddress(8, 9)),
    eds_file=Path("/run/here/eds.json"),
)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every scalar of a document with the place where it is."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from leaves(item, f"{path}.{item['name'] if isinstance(item, dict) and 'name' in item else index}")
    else:
        yield path, value


@pytest.mark.parametrize("configuration", [STANDALONE, GATEWAY], ids=lambda path: path.stem)
def test_only_addresses_ports_and_the_endpoints_file_change(configuration: Path) -> None:
    document = load(configuration)
    before, after = dict(leaves(document)), dict(leaves(fit(document, PLACES)))
    changed = {path.rpartition(".")[2] for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    expected = {"address", "port_value"} | ({"path"} if configuration == STANDALONE else set())
    assert changed == expected
    assert dict(leaves(document)) == before, "the document itself is left as it was"


def test_every_picker_becomes_an_endpoint_with_its_health_port() -> None:
    clusters = {cluster["name"]: cluster for cluster in fit(load(STANDALONE), PLACES)["static_resources"]["clusters"]}
    endpoints = clusters["pickers"]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    shown = [
        (
            endpoint["endpoint"]["address"]["socket_address"]["address"],
            endpoint["endpoint"]["address"]["socket_address"]["port_value"],
            endpoint["endpoint"]["health_check_config"]["port_value"],
        )
        for endpoint in endpoints
    ]
    assert shown == [("127.0.0.1", 4, 5), ("127.0.0.2", 6, 7), ("127.0.0.1", 8, 9)]


def test_tls_to_pickers_can_be_left_out_but_not_invented() -> None:
    def tls(document: dict[str, Any]) -> bool:
        clusters = {cluster["name"]: cluster for cluster in document["static_resources"]["clusters"]}
        return "transport_socket" in clusters["pickers"]

    def places(picker_tls: bool | None) -> EnvoyPlaces:
        return replace(PLACES, picker_tls=picker_tls)

    assert tls(fit(load(GATEWAY), places(None)))
    assert tls(fit(load(GATEWAY), places(True)))
    assert not tls(fit(load(GATEWAY), places(False)))
    assert not tls(fit(load(STANDALONE), places(None)))
    with pytest.raises(ConfigurationError, match="cluster pickers has no transport_socket"):
        fit(load(STANDALONE), places(True))


def test_an_endpoints_file_is_needed_where_the_cluster_reads_one() -> None:
    with pytest.raises(ConfigurationError, match="eds_file isn't set"):
        fit(load(STANDALONE), replace(PLACES, eds_file=None))
    fit(load(GATEWAY), replace(PLACES, eds_file=None))


def test_a_configuration_without_an_expected_name_is_refused() -> None:
    document = load(STANDALONE)
    document["static_resources"]["clusters"][1]["name"] = "choosers"
    with pytest.raises(ConfigurationError, match="cluster 'pickers' is missing; there are model-servers, choosers"):
        fit(document, PLACES)


@pytest.mark.parametrize(
    ("text", "problem"), [(None, "doesn't exist"), ("a: [", "isn't YAML"), ("- a", "isn't a mapping")]
)
def test_a_file_that_isn_t_there_or_isn_t_yaml_is_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    path = tmp_path / "envoy.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=problem):
        load(path)
