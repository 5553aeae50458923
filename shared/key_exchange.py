"""The key exchange of TLS, which no peer may make expensive: a handshake runs in the event loop.

Python offers all groups of OpenSSL, or one. With ffdhe8192, which a peer may demand, a handshake takes a tenth of a
second. With DHE of TLS 1.2, a server chooses the modulus: 10 000 bits take more than a second.
"""

import ssl

GROUP = "prime256v1"
"""Which TLS 1.3 requires of all (RFC 8446, section 9.1)."""
CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20:ECDHE+AES"
"""Python's default for TLS 1.2 without DHE."""


def limit_key_exchange(context: ssl.SSLContext, ciphers: str = CIPHERS) -> None:
    """Allow cheap key exchanges only; `ciphers` are those of TLS 1.2."""
    context.set_ciphers(ciphers)
    context.set_ecdh_curve(GROUP)
