import msgspec
import pytest

from shared.model import Endpoint, Fact, Pool, is_ip, join_host_port, split_host_port


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        *(("10.0.0.1:8000", ("10.0.0.1", 8000)), ("10.0.0.1", ("10.0.0.1", None))),
        *(("[fd00::1]:8000", ("fd00::1", 8000)), ("[fd00::1]", ("fd00::1", None)), ("fd00::1", ("fd00::1", None))),
        *(("vllm-0.default:80", ("vllm-0.default", 80)), ("vllm-0", ("vllm-0", None)), ("a:65535", ("a", 65535))),
    ],
)
def test_an_address_is_split_into_host_and_port(text: str, parts: tuple[str, int | None]) -> None:
    assert split_host_port(text) == parts


NOT_ADDRESSES = (
    *("", ":80", "a:", "a:0", "a:65536", "a:8o", "a:-1", "a:٣", "a:99999999", "a:b:c"),
    *("fd00::1::2", "[fd00::1", "[fd00::1]:", "[fd00::1]x", "[fd00::1]:0"),
    *("[10.0.0.1]:80", "[vllm]:80", "[]", "[]:80"),
)


@pytest.mark.parametrize("text", NOT_ADDRESSES)
def test_what_is_no_address_is_refused_by_name(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address with an optional port"):
        split_host_port(text)


@pytest.mark.parametrize(("host", "port"), [("10.0.0.1", 80), ("fd00::1", 80), ("vllm", 1)])
def test_what_is_joined_is_split_again(host: str, port: int) -> None:
    assert split_host_port(join_host_port(host, port)) == (host, port)


def test_an_endpoints_authority_is_its_address_and_port_as_envoy_spells_them() -> None:
    assert Endpoint(id="d/a", name="a", address="10.0.0.1", port=80).authority == "10.0.0.1:80"
    assert Endpoint(id="d/a", name="a", address="fd00::1", port=80).authority == "[fd00::1]:80"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("10.0.0.1", True), ("fd00::1", True), ("[fd00::1]", False), ("a", False), ("fe80::1%é", False)],
)
def test_an_ip_address_is_told_from_a_name(text: str, is_one: bool) -> None:
    assert is_ip(text) is is_one


def test_a_fact_names_its_kind_and_version_and_ignores_fields_of_a_newer_one() -> None:
    fact = msgspec.json.decode(b'{"type": "pool/1", "name": "p", "colour": "red"}', type=Fact)
    assert fact == Pool(name="p")
