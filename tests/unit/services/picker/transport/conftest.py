"""Whatever is about gRPC holds for both transports."""

from collections.abc import Iterator

import pytest

from services.picker.transport.grpc_server import Transport
from tests.ext_proc_server import transports


@pytest.fixture(params=["http2", "grpcio"])
def transport(request: pytest.FixtureRequest) -> Iterator[Transport]:
    transports.append(request.param)
    yield request.param
    transports.pop()
