"""Work of an event loop, turn by turn: what a turn takes, everything else in the process waits."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np

from services.picker.pipeline import build
from services.picker.settings.http2_options import Http2Options
from services.picker.transport.ext_proc import SERVICE, StreamHandler
from shared.config import LoadedConfig, load
from shared.plugin import Registry
from shared.service.reload import Reloader
from tests.ext_proc_server import ExtProcServer


def _turns(loop: asyncio.AbstractEventLoop, going_on: Callable[[], bool]) -> Iterator[None]:
    while going_on():
        loop.call_soon(loop.stop)
        loop.run_forever()
        yield None


def streamed(
    open_stream: Callable[[], StreamHandler], messages: Sequence[bytes], options: Http2Options
) -> Callable[[], Iterator[Any]]:
    """A stream through a picker's gRPC server: what grpcio does in the loop is in it."""

    def ask(port: int) -> None:
        most = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=most) as channel:
            call: Any = channel.stream_stream  # grpc-stubs is older than serializers that may be left out
            answers = call(f"/{SERVICE}/Process")(iter(messages))
            try:
                for _ in messages:
                    next(answers)
            except grpc.RpcError:
                pass  # larger than it takes

    def run() -> Iterator[Any]:
        loop = asyncio.new_event_loop()
        server = ExtProcServer(open_stream, port=0, options=options)
        loop.run_until_complete(server.start())
        client = threading.Thread(target=ask, args=(server.port,))
        client.start()
        yield from _turns(loop, lambda: client.is_alive() or server.open > 0)
        loop.run_until_complete(server.stop(0))
        loop.close()

    return run


def configuration(plugins: int) -> str:
    """A document with so many plugins, all of them in one profile."""
    names = range(plugins)
    listed = "".join(f"- {{type: queue-scorer, name: s{name}}}\n" for name in names)
    members = "".join(f"  - {{pluginRef: s{name}, weight: {name}}}\n" for name in names)
    head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
    return f"{head}plugins:\n{listed}schedulingProfiles:\n- name: default\n  plugins:\n{members}"


def configured(text: str) -> Callable[[], Iterator[Any]]:
    """A changed configuration, until a picker decides by it."""
    registry, random = Registry.installed(), np.random.default_rng(7)

    def run() -> Iterator[Any]:
        loop, used = asyncio.new_event_loop(), threading.Event()

        def use(config: LoadedConfig) -> None:
            build(config, random, time.time)
            used.set()

        reloader = Reloader(lambda text, origin: load(text, registry, origin), use, running="")
        reloader.offer("", "")
        task = loop.create_task(reloader.run())
        reloader.offer(text, "")
        yield from _turns(loop, lambda: not used.is_set())
        task.cancel()
        loop.run_until_complete(asyncio.wait({task}))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    return run
