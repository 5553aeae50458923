"""TLS of a port: whom it lets in, and certificates that change while it serves."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from grpc_health.v1 import health_pb2
from msgspec import structs
from structlog.testing import capture_logs

from services.picker.settings.http2_options import Http2Options
from services.picker.transport.certificate import Certificate, Certificates, read, self_signed
from services.picker.transport.grpc_server import DEFAULTS, GrpcServer, Transport
from services.picker.transport.health import Health
from tests.waiting import eventually

GRPC: Any = grpc.aio
pb: Any = health_pb2
CHECK = pb.HealthCheckRequest(service="liveness").SerializeToString()


def made() -> Certificate:
    return self_signed(["localhost", "127.0.0.1"], datetime.now(UTC))


def clients() -> Certificate:
    """A client's certificate, signed by itself."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a proxy")])
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain)
    return Certificate(chain=signed.public_bytes(pem).decode(), key=private.decode())


def write(directory: Path, certificate: Certificate) -> None:
    (directory / "tls.crt").write_text(certificate.chain)
    (directory / "tls.key").write_text(certificate.key)


@asynccontextmanager
async def serving(
    certificates: Certificates, transport: Transport, options: Http2Options = DEFAULTS
) -> AsyncIterator[int]:
    health = Health(lambda: True)
    server = GrpcServer(
        health.methods,
        host="127.0.0.1",
        port=0,
        flag="--grpc-port",
        transport=transport,
        options=options,
        certificates=certificates,
    )
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop(0)


@asynccontextmanager
async def channel(port: int, trusted: Certificate, own: Certificate | None = None) -> AsyncIterator[Any]:
    """A connection that trusts this certificate, and shows its own."""
    key, chain = (None, None) if own is None else (own.key.encode(), own.chain.encode())
    credentials = grpc.ssl_channel_credentials(trusted.chain.encode(), key, chain)
    async with GRPC.secure_channel(f"localhost:{port}", credentials) as opened:
        yield opened


async def check(opened: Any) -> bytes:
    answer: bytes = await opened.unary_unary("/grpc.health.v1.Health/Check", None, None)(CHECK, timeout=60)
    return answer


async def test_new_connections_get_a_changed_certificate_and_open_ones_go_on(
    tmp_path: Path, transport: Transport
) -> None:
    first, second = made(), self_signed(["localhost"], datetime.now(UTC) - timedelta(days=1))
    write(tmp_path, first)
    certificates = Certificates(read(str(tmp_path)))
    async with serving(certificates, transport) as port, channel(port, first) as before:
        assert await check(before)
        following = asyncio.create_task(certificates.follow(str(tmp_path), ""))
        write(tmp_path, second)
        await eventually(lambda: certificates.certificate == second, "the change is seen")

        async def taken() -> bool:
            try:
                async with channel(port, second) as after:
                    return bool(await check(after))
            except GRPC.AioRpcError:
                return False

        await eventually(taken, "new connections get the new certificate", step=0.05)
        assert certificates.expirations() == Certificates(second).expirations()
        assert await check(before)
        following.cancel()


async def test_a_pair_that_does_not_belong_together_is_refused_and_the_former_stays(
    tmp_path: Path, transport: Transport
) -> None:
    first, second = made(), made()
    write(tmp_path, first)
    certificates = Certificates(read(str(tmp_path)))
    async with serving(certificates, transport) as port:
        with capture_logs() as logs:
            following = asyncio.create_task(certificates.follow(str(tmp_path), ""))
            (tmp_path / "tls.crt").write_text(second.chain)
            await eventually(lambda: any(line["event"] == "certificate.refused" for line in logs), "it is logged")
            following.cancel()
        assert certificates.certificate == first
        async with channel(port, first) as opened:
            assert await check(opened)


async def test_with_a_client_ca_only_clients_with_its_certificate_are_served(transport: Transport) -> None:
    server, client = made(), clients()
    async with serving(Certificates(server, client_ca=client.chain), transport) as port:
        async with channel(port, server, client) as opened:
            assert await check(opened)
        for own in (None, clients()):
            async with channel(port, server, own) as opened:
                with pytest.raises(GRPC.AioRpcError) as caught:
                    await check(opened)
                assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_connection_speaks_h2_over_tls_1_2_or_later() -> None:
    certificate = made()
    certificates = Certificates(certificate)
    assert certificates.context().minimum_version is ssl.TLSVersion.TLSv1_2
    context = ssl.create_default_context(cadata=certificate.chain)
    context.set_alpn_protocols(["http/1.1", "h2"])
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with serving(certificates, "http2") as port:
        _, writer = await asyncio.open_connection("localhost", port, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
        writer.close()
        await writer.wait_closed()


async def test_connections_count_from_their_tls_handshake_on() -> None:
    certificate = made()
    options = structs.replace(DEFAULTS, max_connections=2, handshake_timeout=3600.0)
    async with serving(Certificates(certificate), "http2", options) as port:
        silent = [(await asyncio.open_connection("127.0.0.1", port))[1] for _ in range(2)]
        reader, late = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(reader.read(), 60) == b"", "it is closed"
        for writer in (late, silent.pop()):
            writer.close()
            await writer.wait_closed()
        async with channel(port, certificate) as opened:
            assert await check(opened)
        silent.pop().close()
