"""The `endpoints` list."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.watcher.documents import Documents, read_documents
from shared.config.problems import Problems
from shared.model import Endpoint


def read(text: str) -> Documents:
    problems = Problems()
    documents = read_documents(text, "endpoints.yaml", problems)
    assert problems.errors == []
    return documents


def errors(text: str) -> list[str]:
    problems = Problems()
    read_documents(text, "endpoints.yaml", problems)
    return [str(error) for error in problems.errors]


def one(entry: str) -> Endpoint:
    endpoints = read(f"endpoints:\n- {entry}\n").endpoints
    assert endpoints is not None
    [endpoint] = endpoints
    return endpoint


def test_an_entry_of_the_original_is_an_endpoint() -> None:
    entry = '{name: vllm-0, namespace: prod, address: 10.0.0.1, port: "8000", labels: {model: llama}}'
    assert one(entry) == Endpoint(
        id="prod/vllm-0", name="vllm-0", namespace="prod", address="10.0.0.1", port=8000, labels={"model": "llama"}
    )


@pytest.mark.parametrize(
    ("written", "read_as"),
    [("fd00::1", "fd00::1"), ("[fd00::1]", "fd00::1"), ("FD00:0:0:0:0:0:0:1", "fd00::1"), ("::1", "::1")],
)
def test_an_ipv6_address_comes_out_as_envoy_spells_it(written: str, read_as: str) -> None:
    endpoint = one(f'{{name: a, address: "{written}", port: 80}}')
    assert (endpoint.address, endpoint.host, endpoint.authority) == (read_as, "", f"[{read_as}]:80")


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("vllm-0.models.svc.cluster.local", "vllm-0.models.svc.cluster.local"),
        ("VLLM-0.Example.COM.", "vllm-0.example.com"),
        ("localhost", "localhost"),
        ("project_sim_1", "project_sim_1"),
        ("3com.example", "3com.example"),
    ],
)
def test_a_host_name_waits_for_its_address(written: str, host: str) -> None:
    endpoint = one(f"{{name: a, address: {written}, port: 80}}")
    assert (endpoint.host, endpoint.address) == (host, "")


@pytest.mark.parametrize(
    ("written", "draining"),
    [
        ("drain: true", True),
        ("drain: false", False),
        ("drain: null", False),
        ('labels: {pointsman/drain: "true"}', True),
        ('labels: {pointsman/drain: ""}', True),
        ('labels: {pointsman/drain: "false"}', False),
    ],
)
def test_an_endpoint_drains_by_its_field_or_its_label(written: str, draining: bool) -> None:
    assert one(f"{{name: a, address: 10.0.0.1, port: 80, {written}}}").draining is draining


def test_the_metrics_page_can_be_elsewhere() -> None:
    assert one('{name: a, address: 10.0.0.1, port: 80, metricsHost: "10.0.0.1:9100"}').metrics_host == "10.0.0.1:9100"
    assert one("{name: a, address: 10.0.0.1, port: 80}").metrics_host == ""


@pytest.mark.parametrize("text", ["endpoints: []", "endpoints:\n"])
def test_an_empty_list_means_no_endpoints(text: str) -> None:
    assert read(text).endpoints == ()


def test_a_null_is_a_field_that_is_not_given_and_a_label_without_a_value_is_empty() -> None:
    assert one("{name: a, address: 10.0.0.1, port: 80, labels: null, namespace: null}").id == "default/a"
    assert one("{name: a, address: 10.0.0.1, port: 80, labels: {spot: }}").labels == {"spot": ""}


def test_the_endpoints_of_several_documents_add_up() -> None:
    text = (
        "endpoints: [{name: a, address: 10.0.0.1, port: 1}]\n---\nendpoints: [{name: b, address: 10.0.0.2, port: 1}]\n"
    )
    assert [endpoint.name for endpoint in read(text).endpoints or ()] == ["a", "b"]


def test_two_entries_for_one_server_are_pointed_out() -> None:
    problems = Problems()
    text = "endpoints:\n- {name: a, address: '::1', port: 80}\n- {name: b, address: '0::1', port: 80}\n"
    documents = read_documents(text, "", problems)
    assert [str(warning) for warning in documents.warnings] == [
        "endpoints[1]: [::1]:80 is endpoints[0] too: one server counts twice (line 3)"
    ]
    assert problems.errors == []


ENTRY = "name: a\n  address: 10.0.0.1\n  port: 80\n  "
NO_ADDRESS = "isn't an address; an IPv4 or IPv6 address or a host name is expected"
NO_PORT = "isn't a port; a number from 1 to 65535 is expected"
NO_PART = "can't be part of an id: no spaces, no slashes, at most 253 long"


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": None}, ".name: required, and missing"),
        ({"address": None}, ".address: required, and missing"),
        ({"port": None}, ".port: required, and missing"),
        ({"name": ""}, ".name: '' is empty"),
        ({"name": 7}, ".name: 7 is a number; a string is expected"),
        ({"name": "a/b"}, f".name: 'a/b' {NO_PART}"),
        ({"namespace": "b c"}, f".namespace: 'b c' {NO_PART}"),
        ({"address": "10.0.0.256"}, f".address: '10.0.0.256' {NO_ADDRESS}"),
        ({"address": "fd00::g"}, f".address: 'fd00::g' {NO_ADDRESS}"),
        ({"address": "vllm:8000"}, ".address: 'vllm:8000' has a port, which belongs in `port`"),
        ({"address": "[fd00::1]:8000"}, ".address: '[fd00::1]:8000' has a port, which belongs in `port`"),
        ({"address": "http://vllm"}, ".address: 'http://vllm' is a URL; an IPv4 or"),
        ({"address": "0.0.0.0"}, ".address: '0.0.0.0' means every address of a machine; one that clients can reach"),
        ({"address": "ff02::1"}, ".address: 'ff02::1' is a multicast address; a server's own is expected"),
        ({"address": "::ffff:10.0.0.1"}, ".address: '::ffff:10.0.0.1' is an IPv4 address in the form of IPv6"),
        ({"address": "fe80::1%eth0"}, ".address: 'fe80::1%eth0' has a zone, which means something on one machine only"),
        ({"port": 0}, f".port: 0 {NO_PORT}"),
        ({"port": 65536}, f".port: 65536 {NO_PORT}"),
        ({"port": "80a"}, f".port: '80a' {NO_PORT}"),
        ({"port": True}, f".port: true {NO_PORT}"),
        ({"metricsHost": "10.0.0.1"}, ".metricsHost: '10.0.0.1' isn't an address with a port; host:port is expected"),
        ({"metricsHost": "a b:80"}, f".metricsHost: 'a b:80' {NO_ADDRESS}"),
        (
            {"metricsHost": "[fe80::1%eth0]:80"},
            ".metricsHost: '[fe80::1%eth0]:80' has a zone, which means something on",
        ),
        ({"metricsHost": "[fe80::1%é]:80"}, ".metricsHost: '[fe80::1%é]:80' isn't an address with a port; host:port"),
        ({"metricsHost": "é:80"}, f".metricsHost: 'é:80' {NO_ADDRESS}"),
        ({"nodeAddress": "fe80::1%é"}, ".nodeAddress: 'fe80::1%é' isn't an IP address"),
        ({"nodeAddress": "fe80::1%eth0"}, ".nodeAddress: 'fe80::1%eth0' has a zone, which means something on one"),
        ({"rank": -1}, ".rank: -1 is negative"),
        ({"labels": ["x"]}, ".labels: ['x'] is a list; a mapping is expected"),
        ({"labels": {"a.b/c": 1}}, ".labels.a.b/c: 1 isn't a string; put it in quotes"),
        ({"labels": {"a": [1]}}, ".labels.a: [1] isn't a label's value; a string is expected"),
        ({"adress": "10.0.0.1"}, ".adress: unknown field; did you mean 'address'?"),
    ],
    ids=str,
)
def test_a_bad_entry_names_the_field_the_value_and_what_would_be_right(given: dict[str, Any], problem: str) -> None:
    entry = {"name": "a", "address": "10.0.0.1", "port": 80, **given}
    [found] = errors(json.dumps({"endpoints": [entry]}))
    assert found.startswith(f"endpoints[0]{problem}")
    assert found.endswith(" (line 1)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["document: is empty; `endpoints: []` says that there are none"]),
        ("# nothing\n---\n", ["document: is empty; `endpoints: []` says that there are none"]),
        (
            "endpoint: []\n",
            ["document: neither `endpoints` nor `kind` is in it; did you mean 'endpoints'? (line 1)"],
        ),
        (
            "- a\n",
            ["document: a list is no document; a mapping with `endpoints`, or with `kind`, is expected (line 1)"],
        ),
        (
            "a-password\n",
            ["document: a string is no document; a mapping with `endpoints`, or with `kind`, is expected (line 1)"],
        ),
        ("endpoints:\n- x:1\n", ["endpoints[0]: 'x:1' is a string; a mapping is expected (line 2)"]),
        (
            f"endpoints:\n- {ENTRY}labels: {{1: a}}\n",
            ["endpoints[0].labels.1: the label's name 1 isn't a string; put it in quotes (line 5)"],
        ),
        (
            f"endpoints:\n- {ENTRY[:-2]}- {ENTRY}",
            ["endpoints[1].name: 'default/a' is the id of endpoints[0] too; an id is given once (line 5)"],
        ),
        ("endpoints: {a: 1}\n", ["endpoints: {'a': 1} isn't a list of endpoints (line 1)"]),
        ("endpoints: []\nendpoints: []\n", ["endpoints: duplicate key (line 2)"]),
        ("endpoints: []\nfoo: 1\n", ["foo: unknown field; known: endpoints (line 2)"]),
        ("endpoints: [}\n", ["document: not valid YAML: did not find expected node content (line 1)"]),
        (
            "endpoints: [{name: a, address: 10.0.0.1, port: 1}]\n---\n"
            "endpoints: [{name: a, address: 10.0.0.2, port: 1}]\n",
            ["documents[1].endpoints: 'default/a' is in another document of this file too (line 3)"],
        ),
    ],
)
def test_a_bad_file_says_what_is_wrong(text: str, expected: list[str]) -> None:
    assert errors(text) == expected


def test_what_comes_before_a_syntax_error_is_checked_too() -> None:
    found = errors("endpoints:\n- {name: a, address: 10.0.0.1, port: 0}\n---\nendpoints: [}\n")
    assert [problem.rpartition("(")[2] for problem in found] == ["line 2)", "line 4)"]


KEYS = st.sampled_from(["endpoints", "name", "address", "port", "labels", "namespace", "metricsHost", "kind", "spec"])
LEAVES = st.none() | st.booleans() | st.floats() | st.text() | st.integers()


@settings(max_examples=40)
@given(
    st.recursive(
        LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=20
    )
)
def test_no_data_whatever_ends_in_an_exception(data: object) -> None:
    """Anything that YAML can hold is read, or refused with problems."""
    problems = Problems()
    documents = read_documents(json.dumps(data), "any", problems)
    assert problems.errors or documents.endpoints is not None or documents.ignored
