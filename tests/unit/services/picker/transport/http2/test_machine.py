"""The server beside Python's `h2` as its client, whatever both say and in whatever pieces it arrives.

Each call ends once, no message is lost or changed, and neither finds the other at fault.
"""

import gzip
from collections.abc import Iterator

import h2.connection
import h2.events
from h2.config import H2Configuration
from h2.settings import SettingCodes
from hypothesis import settings as examples
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec import structs

from services.picker.transport.calls import StatusCode
from tests.unit.services.picker.transport.http2.peer import (
    ACK,
    OPTIONS,
    SETTINGS,
    Peer,
    Recorded,
    frame,
    message,
    request,
)

SMALL = structs.replace(OPTIONS, stream_window=65_535, send_buffer=500)
CONTENTS = st.binary(max_size=600) | st.integers(0, 40_000).map(bytes)
SIZES = st.integers(1, 60) | st.just(2**20)
PICKS = st.integers(0, 99)
SETTINGS_ACK = frame(SETTINGS, ACK, 0)


class Conversation:
    """A stream as its client sees it."""

    def __init__(self, call_gzip: bool) -> None:
        self.gzip = call_gzip
        self.messages: list[bytes] = []
        self.unsent = bytearray()
        self.echoed = bytearray()
        self.trailers: dict[str, str] = {}
        self.ended = self.closed = self.reset = False
        """By the client; by the server; by the client's RST_STREAM."""


class H2Client(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.peer = Peer(SMALL, greets=False)
        self.server = self.peer.connection
        self.client = h2.connection.H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.client.initiate_connection()
        self.conversations: dict[int, Conversation] = {}
        self.unread: list[tuple[int, int]] = []
        """Bytes of DATA by stream whose windows the client hasn't opened again."""
        self.to_server, self.to_client = bytearray(), bytearray()
        self.settled = False
        """Whether the server has acknowledged all settings: `h2` takes each acknowledgement for the latest ones."""

    # The client

    @precondition(lambda self: len(self.conversations) < 8)
    @rule(compressed=st.booleans())
    def begin(self, compressed: bool) -> None:
        stream = self.client.get_next_available_stream_id()
        self.client.send_headers(stream, request(grpc_encoding="gzip" if compressed else "identity"))
        self.conversations[stream] = Conversation(compressed)

    @precondition(lambda self: self.sending())
    @rule(pick=PICKS, content=CONTENTS)
    def write(self, pick: int, content: bytes) -> None:
        _, conversation = self.sending()[pick % len(self.sending())]
        conversation.messages.append(content)
        conversation.unsent += message(gzip.compress(content), 1) if conversation.gzip else message(content)

    @precondition(lambda self: self.sending())
    @rule(pick=PICKS, size=SIZES, pad=st.none() | st.integers(0, 255), last=st.booleans())
    def send(self, pick: int, size: int, pad: int | None, last: bool) -> None:
        stream, conversation = self.sending()[pick % len(self.sending())]
        self.send_piece(stream, conversation, size, pad, last)

    def send_piece(self, stream: int, conversation: Conversation, size: int, pad: int | None, last: bool) -> None:
        room = min(self.client.local_flow_control_window(stream), self.client.max_outbound_frame_size)
        room -= 0 if pad is None else pad + 1
        if room < 0:
            return
        piece = bytes(conversation.unsent[: min(size, room)])
        del conversation.unsent[: len(piece)]
        conversation.ended = last and not conversation.unsent
        self.client.send_data(stream, piece, end_stream=conversation.ended, pad_length=pad)

    @precondition(lambda self: self.open())
    @rule(pick=PICKS)
    def reset(self, pick: int) -> None:
        stream, conversation = self.open()[pick % len(self.open())]
        self.client.reset_stream(stream, 8)
        conversation.reset = conversation.ended = True

    @precondition(lambda self: self.settled)
    @rule(
        window=st.sampled_from([0, 1, 100, 65_535, 2**31 - 1]),
        frame=st.sampled_from([2**14, 2**14 + 1, 2**24 - 1]),
        table=st.sampled_from([0, 100, 4096, 2**16]),
    )
    def change_settings(self, window: int, frame: int, table: int) -> None:
        limits: dict[SettingCodes | int, int] = {
            SettingCodes.INITIAL_WINDOW_SIZE: window,
            SettingCodes.MAX_FRAME_SIZE: frame,
            SettingCodes.HEADER_TABLE_SIZE: table,
        }
        self.client.update_settings(limits)
        self.settled = False

    @rule()
    def ping(self) -> None:
        self.client.ping(b"12345678")

    @precondition(lambda self: self.unread)
    @rule(pick=PICKS)
    def read(self, pick: int) -> None:
        stream, size = self.unread.pop(pick % len(self.unread))
        self.client.acknowledge_received_data(size, stream)

    # The server's calls

    @precondition(lambda self: self.peer.calls)
    @rule(pick=PICKS, content=CONTENTS)
    def answer_unasked(self, pick: int, content: bytes) -> None:
        self.call(pick).answer(content)

    @precondition(lambda self: self.peer.calls)
    @rule(pick=PICKS)
    def finish_early(self, pick: int) -> None:
        self.call(pick).stream.finish(StatusCode.UNAVAILABLE)

    @precondition(lambda self: self.peer.calls)
    @rule(pick=PICKS, paused=st.booleans())
    def pause(self, pick: int, paused: bool) -> None:
        stream = self.call(pick).stream
        (stream.pause if paused else stream.resume)()

    @rule(held=st.booleans())
    def socket_is_full(self, held: bool) -> None:
        (self.server.hold if held else self.server.release)()

    # What is under way

    @rule(size=SIZES)
    def server_hears(self, size: int) -> None:
        self.to_server += self.client.data_to_send()
        piece = bytes(self.to_server[:size])
        del self.to_server[:size]
        while self.server.receive(piece, 0.0):
            piece = b""

    @rule(size=SIZES)
    def client_hears(self, size: int) -> None:
        self.to_client += b"".join(self.server.out)
        self.server.out.clear()
        piece = bytes(self.to_client[:size])
        del self.to_client[:size]
        for event in self._heard(piece):
            match event:
                case h2.events.DataReceived(stream_id=stream, data=data, flow_controlled_length=size):
                    self.conversations[stream].echoed += data
                    self.unread.append((stream, size))
                case h2.events.SettingsAcknowledged():
                    self.settled = True
                case h2.events.TrailersReceived(stream_id=stream, headers=fields):
                    self.conversations[stream].trailers = {str(name): str(value) for name, value in fields}
                case h2.events.ResponseReceived(stream_id=stream, headers=fields, stream_ended=ended):
                    if ended:
                        self.conversations[stream].trailers = {str(name): str(value) for name, value in fields}
                case h2.events.StreamEnded(stream_id=stream) | h2.events.StreamReset(stream_id=stream):
                    self.conversations[stream].closed = True

    def _heard(self, piece: bytes) -> Iterator[h2.events.Event]:
        """h2 takes larger frames only from the call after that which brings the acknowledgement of its settings."""
        yield from self.client.receive_data(piece[:8])  # the end of one
        at = 8
        while at < len(piece):
            found = piece.find(SETTINGS_ACK, max(at - 8, 0))
            end = len(piece) if found < 0 else found + len(SETTINGS_ACK)
            yield from self.client.receive_data(piece[at:end])
            at = end

    @invariant()
    def nobody_is_at_fault(self) -> None:
        assert self.server.failure is None
        assert all(call.ends <= 1 for call in self.peer.calls)

    def teardown(self) -> None:
        """Everything arrives, and every call ends."""
        self.server.release()
        for call in self.peer.calls:
            call.stream.resume()
        before = None
        while before != (before := self.progress()):
            for stream, conversation in self.sending():
                self.send_piece(stream, conversation, 2**20, None, True)
            while self.unread:
                self.read(0)
            if self.settled:
                self.change_settings(2**20, 2**14, 4096)
            self.server_hears(2**30)
            self.client_hears(2**30)
            self.nobody_is_at_fault()
        assert (self.server.open, self.peer.memory.used) == (0, 0)
        assert [call.ends for call in self.peer.calls] == [1] * len(self.conversations)
        for call, conversation in zip(self.peer.calls, self.conversations.values(), strict=True):
            assert call.messages == conversation.messages[: len(call.messages)]
            said = b"".join(map(message, call.said))
            if conversation.reset:
                assert said.startswith(bytes(conversation.echoed))
            else:
                assert conversation.closed
                assert conversation.echoed == said
                assert (conversation.trailers["grpc-status"], call.messages == conversation.messages) in {
                    ("0", True)
                } or conversation.trailers["grpc-status"] == "14"

    def progress(self) -> object:
        return [
            (
                len(conversation.unsent),
                conversation.ended,
                conversation.closed,
                len(conversation.echoed),
                len(conversation.trailers),
            )
            for conversation in self.conversations.values()
        ] + [(call.ends, len(call.messages)) for call in self.peer.calls]

    # Choices

    def call(self, pick: int) -> Recorded:
        return self.peer.calls[pick % len(self.peer.calls)]

    def open(self) -> list[tuple[int, Conversation]]:
        return [
            (stream, conversation)
            for stream, conversation in self.conversations.items()
            if not conversation.closed and not conversation.reset
        ]

    def sending(self) -> list[tuple[int, Conversation]]:
        return [(stream, conversation) for stream, conversation in self.open() if not conversation.ended]


TestH2Client = H2Client.TestCase
TestH2Client.settings = examples(max_examples=100, stateful_step_count=50, deadline=None)
