"""What the sources that poll over HTTP share: addresses that differ by label, and trust."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization

from services.collector.sources.http import HttpParameters, HttpSource, Override
from services.collector.sources.metrics import MetricsParameters, MetricsSource
from shared.config import load
from shared.config.decode import MISSING, decode
from shared.config.problems import Problems
from shared.model import Endpoint
from shared.plugin import Registry
from tests.certificates import Authority


def endpoint(**labels: str) -> Endpoint:
    return Endpoint(id="default/a", name="a", address="10.0.0.1", port=8000, labels=labels)


def source(**given: Any) -> HttpSource:
    problems = Problems()
    parameters = decode(given, HttpParameters, "parameters", problems, ignore_case=True)
    assert parameters is not MISSING, problems.errors
    return HttpSource("s", parameters)


MIXED: dict[str, Any] = {
    "path": "/metrics",
    "overrides": [
        {"matchLabels": {"engine": "triton", "zone": "a"}, "scheme": "https"},
        {"matchLabels": {"engine": "trtllm"}, "path": "/prometheus/metrics"},
        {"matchLabels": {"engine": "triton"}, "port": 8002},
    ],
}


@pytest.mark.parametrize(
    ("labels", "url"),
    [
        ({}, "http://10.0.0.1:8000/metrics"),
        ({"engine": "vllm"}, "http://10.0.0.1:8000/metrics"),
        ({"engine": "trtllm", "zone": "a"}, "http://10.0.0.1:8000/prometheus/metrics"),
        ({"engine": "triton"}, "http://10.0.0.1:8002/metrics"),
        ({"engine": "triton", "zone": "a"}, "https://10.0.0.1:8000/metrics"),
    ],
)
def test_the_first_override_whose_labels_an_endpoint_has_says_what_is_different(
    labels: dict[str, str], url: str
) -> None:
    assert source(**MIXED).url(endpoint(**labels)) == url


def test_an_overrides_port_goes_before_every_other() -> None:
    where = Endpoint(id="a", name="a", address="::1", port=8000, metrics_host="[fd00::1]:9000", labels={"engine": "t"})
    override = Override(match_labels={"engine": "t"}, port=9002)
    made = MetricsSource("m", MetricsParameters(port=9001, overrides=(override,)))
    assert made.url(where) == "http://[fd00::1]:9002/metrics"


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ({"path": "/m"}, "parameters.overrides[0].matchLabels: required, and missing"),
        ({"matchLabels": {}, "path": "/m"}, "parameters.overrides[0]: matchLabels: empty"),
        ({"matchLabels": {"a": "b"}}, "parameters.overrides[0]: scheme, path, port: at least one is required"),
        ({"matchLabels": {"a": "b"}, "path": "m"}, "parameters.overrides[0]: path: 'm' doesn't begin with /"),
        ({"matchLabels": {"a": "b"}, "port": 70000}, "parameters.overrides[0].port: 70000 is above 65535"),
        ({"matchLabels": {"a": "b"}, "scheme": "ws"}, "parameters.overrides[0].scheme: 'ws' isn't one of"),
        ({"matchLabels": {"a": 1}, "port": 1}, "parameters.overrides[0].matchLabels.a: 1 is a number"),
        ({"matchLabels": {"a": "b"}, "host": "x"}, "parameters.overrides[0].host: unknown field"),
    ],
)
def test_an_override_that_can_not_be_used_is_refused_by_its_place(override: dict[str, Any], problem: str) -> None:
    problems = Problems()
    assert decode({"overrides": [override]}, HttpParameters, "parameters", problems, ignore_case=True) is MISSING
    assert any(problem in str(error) for error in problems.errors), problems.errors


@pytest.mark.parametrize("path", ["/a b", "/a#b", "/modèles", "/a\tb", "/a\r\nHost: x"])
def test_a_path_that_can_not_stand_in_a_request_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="percent-encode it"):
        HttpParameters(path=path)


def test_a_source_that_only_overrides_ask_by_https_has_its_trust_too() -> None:
    override = Override(match_labels={"a": "b"}, scheme="https")
    found = HttpSource("s", HttpParameters(insecure_skip_verify=False, overrides=(override,))).tls
    assert isinstance(found, ssl.SSLContext)
    assert found.verify_mode is ssl.CERT_REQUIRED


def test_a_client_key_with_a_password_is_an_error_and_asks_nobody(tmp_path: Path) -> None:
    cert, key = Authority(tmp_path, "ca").issue()
    private = serialization.load_pem_private_key(key.read_bytes(), None)
    encryption = serialization.BestAvailableEncryption(b"secret")
    key.write_bytes(private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption))
    with pytest.raises(ValueError, match="clientCertPath, clientKeyPath"):
        HttpSource("s", HttpParameters(scheme="https", client_cert_path=str(cert), client_key_path=str(key)))


def warnings(parameters: str, stale: str = "{}") -> list[str]:
    text = f"""\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{type: metrics-data-source, parameters: {{{parameters}}}}}
- {{type: models-data-source, parameters: {{interval: 1m}}}}
- {{type: queue-scorer}}
dataLayer: {{staleMetrics: {stale}}}
"""
    return [f"{warning.path}: {warning.message}" for warning in load(text, Registry.installed()).warnings]


def test_whoever_names_a_ca_has_servers_verified_by_it(tmp_path: Path) -> None:
    ca = Authority(tmp_path, "ca").ca
    found = HttpSource("s", HttpParameters(scheme="https", ca_cert_path=str(ca))).tls
    assert isinstance(found, ssl.SSLContext)
    assert found.verify_mode is ssl.CERT_REQUIRED
    assert found.check_hostname
    assert len(found.get_ca_certs()) == 1
    plain = HttpSource("s", HttpParameters(scheme="https")).tls
    assert isinstance(plain, ssl.SSLContext)
    assert plain.verify_mode is ssl.CERT_NONE


@pytest.mark.parametrize(
    ("parameters", "warning"),
    [
        ("scheme: https, caCertPath: /ca.pem", ""),
        ("scheme: https, caCertPath: /ca.pem, insecureSkipVerify: false", ""),
        ("scheme: https, insecureSkipVerify: true", ""),
        ("scheme: https, caCertPath: /ca.pem, insecureSkipVerify: true", "insecureSkipVerify is true"),
        ("caCertPath: /ca.pem", "no endpoint is polled by https"),
    ],
)
def test_a_ca_without_effect_is_warned_of(parameters: str, warning: str) -> None:
    found = warnings(parameters)
    assert len(found) == bool(warning)
    assert all(each.startswith("plugins[0].parameters.caCertPath: no effect") and warning in each for each in found)


@pytest.mark.parametrize(
    ("interval", "stale", "warned"),
    [
        ("1s", "{}", False),
        ("2s", "{}", True),
        ("5s", "{}", True),
        ("5s", "{after: 10s}", False),
        ("5s", "{policy: lastKnown}", False),
    ],
)
def test_an_interval_by_which_metrics_go_stale_is_warned_of(interval: str, stale: str, warned: bool) -> None:
    expected = (
        f"plugins[0].parameters.interval: {interval} isn't below 2s, dataLayer.staleMetrics.after: "
        "values become stale before the next scrape"
    )
    assert warnings(f"interval: {interval}", stale) == ([expected] if warned else [])


@pytest.mark.parametrize(("interval", "allowed"), [(0.0, True), (0.001, True), (0.0005, False)])
def test_an_interval_is_a_millisecond_at_least(interval: float, allowed: bool) -> None:
    if allowed:
        assert HttpParameters(interval=interval).interval == interval
        return
    with pytest.raises(ValueError, match=r"interval: 0\.5ms is below 1ms"):
        HttpParameters(interval=interval)
