"""What a handshake of TLS may cost."""

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.collector.http.tls import tls_context
from services.picker.transport.certificate import Certificates, self_signed
from tests.certificates import Authority

EXPENSIVE = "secp521r1"
"""A group that every build of OpenSSL can name here; those of finite fields cost more, and not all can."""
REFUSED = "(?i)handshake failure|no suitable key share"


def handshake(client: ssl.SSLContext, server: ssl.SSLContext) -> ssl.SSLObject:
    """The client's side of a connection. Raises ssl.SSLError."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1")
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(3):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    return ours


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ca")


@pytest.mark.parametrize("verify", [False, True])
def test_a_model_server_cant_choose_an_expensive_group(authority: Authority, verify: bool) -> None:
    server = authority.server()
    client = tls_context(verify=verify, ca=str(authority.ca))
    assert handshake(client, server).version() == "TLSv1.3"
    server.set_ecdh_curve(EXPENSIVE)
    with pytest.raises(ssl.SSLError, match=REFUSED):
        handshake(client, server)


@pytest.mark.parametrize("verify", [False, True])
def test_a_model_server_cant_choose_a_modulus(authority: Authority, verify: bool) -> None:
    client = tls_context(verify=verify, ca=str(authority.ca))
    names = [cipher["name"] for cipher in client.get_ciphers() if cipher["protocol"] != "TLSv1.3"]
    assert names
    assert all(name.startswith("ECDHE-") for name in names)
    server = authority.server()
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    assert handshake(client, server).version() == "TLSv1.2"


def test_a_proxy_cant_choose_an_expensive_group() -> None:
    server = Certificates(self_signed(["127.0.0.1"], datetime.now(UTC))).context()
    proxy = tls_context(verify=False)
    assert handshake(proxy, server).version() == "TLSv1.3"
    proxy.set_ecdh_curve(EXPENSIVE)
    with pytest.raises(ssl.SSLError, match=REFUSED):
        handshake(proxy, server)
