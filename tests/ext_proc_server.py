"""A server of ext_proc alone, as tests and benchmarks need one."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry

from services.picker.body_buffer import MemoryBudget
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.calls import Metadata
from services.picker.transport.certificate import Certificate, Certificates
from services.picker.transport.ext_proc import METHOD, ExtProc, StreamHandler
from services.picker.transport.grpc_server import DEFAULTS, GrpcServer, Transport

transports: list[Transport] = ["http2"]
"""The last one serves. A fixture adds the others to tests that are about transports."""


class ExtProcServer:
    """`ExternalProcessor/Process` on a port of 127.0.0.1."""

    def __init__(
        self,
        open_stream: Callable[[], StreamHandler],
        *,
        port: int = 0,
        certificate: Certificate | None = None,
        options: Http2Options = DEFAULTS,
        max_streams: int = 20_000,
        memory: MemoryBudget | None = None,
        registry: CollectorRegistry | None = None,
        not_ready: Callable[[], str | None] = lambda: None,
        on_metadata: Callable[[Metadata], None] = lambda _: None,
    ) -> None:
        self.service = ExtProc(
            open_stream,
            max_streams=max_streams,
            memory=memory,
            registry=registry or CollectorRegistry(),
            not_ready=not_ready,
            on_metadata=on_metadata,
        )
        self.server = GrpcServer(
            {METHOD: self.service.begin},
            host="127.0.0.1",
            port=port,
            flag="--grpc-port",
            transport=transports[-1],
            options=options,
            certificates=None if certificate is None else Certificates(certificate),
            memory=memory,
        )
        self.start, self.stop = self.server.start, self.server.stop

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def open(self) -> int:
        """Streams under way."""
        return self.service.open
