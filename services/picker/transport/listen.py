"""Opens the port of a gRPC server, with an error that names the flag when that isn't possible."""

import grpc.aio

from services.picker.transport.certificate import Certificate
from shared.config.problems import Invalid, Problem
from shared.model import join_host_port


def listen(server: grpc.aio.Server, host: str, port: int, flag: str, certificate: Certificate | None = None) -> int:
    """Binds the server to `host:port`, with TLS when there is a certificate; the port, which for 0 is a free one.

    Raises `Invalid` when the address can't be bound.
    """
    address = join_host_port(host, port)
    try:
        if certificate is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, certificate.credentials())
    except RuntimeError as error:
        raise Invalid([Problem(flag, f"{address} can't be bound: {error}; 0 takes a free port")]) from error
