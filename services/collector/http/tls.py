"""Whether, and by what, https servers are verified."""

import ssl


def tls_context(*, verify: bool, ca: str = "") -> ssl.SSLContext:
    """By the CA's file (PEM), or else by the system's certificates, which take tens of milliseconds to read; or not at
    all. Raises OSError where the file can't be used."""
    if verify:
        return ssl.create_default_context(cafile=ca or None)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
