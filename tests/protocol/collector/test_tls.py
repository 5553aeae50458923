"""Whom a source trusts: what is wrong with a server's certificate is told apart, and costs no other server anything."""

import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from yarl import URL

from services.collector.http import tls
from services.collector.http.client import Client, Failure, ScrapeError
from shared.attributes import WAITING_QUEUE_SIZE
from tests.certificates import Authority
from tests.nats import NatsServer
from tests.protocol.collector.harness import Frames, OddServer, Owner, collector, endpoint, vllm
from tests.waiting import eventually

CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- {{name: secure, type: metrics-data-source, parameters: {{scheme: https, {}}}}}
- {{type: core-metrics-extractor}}
dataLayer:
  sources: [{{pluginRef: secure, extractors: [{{pluginRef: core-metrics-extractor}}]}}]
"""


def verifying(authority: Authority, *more: str) -> str:
    """A source that trusts this authority and nobody else."""
    return CONFIG.format(", ".join(["insecureSkipVerify: false", f"caCertPath: {authority.ca}", *more]))


@pytest.fixture
def authorities(tmp_path: Path) -> tuple[Authority, Authority]:
    """One that is trusted, and a stranger."""
    return Authority(tmp_path, "trusted"), Authority(tmp_path, "stranger")


BROKEN = {
    "wrong CA": "unable to get local issuer certificate",
    "expired": "certificate has expired",
    "wrong host": "IP address mismatch",
}


async def test_bad_certificates_are_refused_by_a_source_that_verifies(
    nats: NatsServer, owner: Owner, frames: Frames, authorities: tuple[Authority, Authority]
) -> None:
    trusted, stranger = authorities
    contexts = (stranger.server(), trusted.server(expired=True), trusted.server("192.0.2.1"))
    async with AsyncExitStack() as stack:
        good = await stack.enter_async_context(OddServer(vllm(1), ssl=trusted.server()))
        broken = {
            name: await stack.enter_async_context(OddServer(vllm(2), ssl=context))
            for name, context in zip(BROKEN, contexts, strict=True)
        }
        service = await stack.enter_async_context(collector(nats.url))
        here = [endpoint(name, server.port) for name, server in {"good": good, **broken}.items()]
        await owner.publish(here, verifying(trusted))
        await eventually(lambda: frames.value("good", WAITING_QUEUE_SIZE) == 1.0, "the good server's value")
        for name, reason in BROKEN.items():
            (described,) = service.scraper.endpoints[f"default/{name}"].targets
            await eventually(lambda: described.failures[Failure.TLS] >= 2, f"failures of TLS: {name}")  # noqa: B023
            assert reason in str(described.error)
            assert broken[name].requests == []
        await owner.publish(here, CONFIG.format("insecureSkipVerify: true"))
        for name in BROKEN:
            await eventually(lambda: frames.value(name, WAITING_QUEUE_SIZE) == 2.0, "trust without verification")  # noqa: B023


async def test_certificates_that_are_renewed_are_read_again(
    nats: NatsServer,
    owner: Owner,
    frames: Frames,
    authorities: tuple[Authority, Authority],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The authority changes, and with it what the server shows and what it wants to be shown."""
    trusted, stranger = authorities
    monkeypatch.setattr(tls, "CHECK_INTERVAL", 0.05)

    def server(authority: Authority) -> ssl.SSLContext:
        context = authority.server()
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority.ca)
        return context

    certificate, key = trusted.issue()
    config = verifying(trusted, f"clientCertPath: {certificate}", f"clientKeyPath: {key}")
    async with (
        OddServer(vllm(3), ssl=server(trusted)) as old,
        OddServer(vllm(4), ssl=server(stranger)) as new,
        collector(nats.url) as service,
    ):
        await owner.publish([endpoint("old", old.port), endpoint("new", new.port)], config)
        await eventually(lambda: frames.value("old", WAITING_QUEUE_SIZE) == 3.0, "the value by the old certificates")
        assert frames.values("new") == {}
        for path, source in zip((trusted.ca, certificate, key), (stranger.ca, *stranger.issue()), strict=True):
            path.write_bytes(source.read_bytes())
        await eventually(lambda: frames.value("new", WAITING_QUEUE_SIZE) == 4.0, "the value by the new certificates")
        assert service.scraper.endpoints["default/new"].targets[0].up


async def test_without_files_a_server_is_verified_by_the_systems_certificates_or_not_at_all(
    authorities: tuple[Authority, Authority],
) -> None:
    """What a plugin's own requests use."""
    client = Client(timeout=60.0, page_limit=10_000)
    async with OddServer(vllm(1), ssl=authorities[0].server()) as server:
        url = URL(f"https://127.0.0.1:{server.port}/metrics")
        try:
            for _ in range(2):
                assert b"num_requests_waiting" in await client.get(url, False)
            with pytest.raises(ScrapeError, match="unable to get local issuer certificate"):
                await client.get(url, True)
        finally:
            await client.close()
