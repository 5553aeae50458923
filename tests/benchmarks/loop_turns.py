"""Work of an event loop, turn by turn: what a turn takes, everything else in the process waits."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from services.picker.app import PickerService
from services.picker.settings.http2_options import Http2Options
from services.picker.settings.picker import PickerSettings
from services.picker.transport.ext_proc import SERVICE, StreamHandler
from shared.config.schema import EACH_EXPRESSION, MAX_EXPRESSION, MAX_EXPRESSIONS
from shared.plugin import Registry
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


NESTED = "[" * 20 + "1" + "]" * 20
EXPRESSIONS = {
    "many values": f"size([{','.join('1' * (MAX_EXPRESSION // 2 - 4))}])",
    "lists in lists": f"size([{','.join([NESTED] * ((MAX_EXPRESSION - 8) // (len(NESTED) + 1)))}])",
    "short": "1",
}
"""Those that take the longest, all of their kind."""


def reporters(expression: str) -> str:
    """A document with as many of the expression as it may have."""
    count = MAX_EXPRESSIONS // (len(expression) + EACH_EXPRESSION)
    listed = "".join(
        f"- {{type: request-attribute-reporter, name: r{name}, parameters: {{attributes: [{{key: {{name: x{name}}}, "
        f'expression: "{expression}"}}]}}}}\n'
        for name in range(count)
    )
    return f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\n{listed}"


def configured(text: str) -> Callable[[], Iterator[Any]]:
    """A configuration from the bus, until a picker decides by it."""
    registry = Registry.installed()

    def run() -> Iterator[Any]:
        loop = asyncio.new_event_loop()
        picker = PickerService(PickerSettings(), registry)
        task = loop.create_task(picker.config.run())
        picker.config.offer(text, "")
        yield from _turns(loop, lambda: picker.config.pending() is not None)
        assert picker.config.accepted, picker.config.problem
        task.cancel()
        loop.run_until_complete(asyncio.wait({task}))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()

    return run
