"""The limits of the HTTP/2 server as settings."""

from typing import Annotated

from msgspec import Meta

from services.picker.settings.http2_options import DEFAULTS, Http2Options
from shared.quantities import Duration, PositiveDuration, PositiveSize
from shared.service.settings import CommonSettings


class Http2Settings(CommonSettings, frozen=True, kw_only=True):
    """Settings of a picker: the limits of its HTTP/2 server."""

    http2_max_connections: Annotated[
        int, Meta(ge=1, description="maximum open connections of a gRPC port; further ones are closed at once")
    ] = DEFAULTS.max_connections
    http2_max_concurrent_streams: Annotated[
        int, Meta(ge=1, description="maximum open streams of a connection; further ones are refused")
    ] = DEFAULTS.max_concurrent_streams
    http2_max_streams: Annotated[
        int, Meta(ge=1, description="maximum open streams of all connections of a gRPC port; further ones are refused")
    ] = DEFAULTS.max_streams
    http2_max_header_list: Annotated[
        PositiveSize,
        Meta(
            description="maximum bytes of a stream's headers; more end the stream, and more than four times as many"
            " the connection"
        ),
    ] = DEFAULTS.max_header_list
    http2_max_continuations: Annotated[
        int, Meta(ge=1, description="maximum CONTINUATION frames of a header block; more end the connection")
    ] = DEFAULTS.max_continuations
    http2_max_frame_size: Annotated[
        int,
        Meta(
            ge=16384,
            le=16777215,
            extra={"format": "size"},
            description="maximum bytes of a frame's payload; a longer one ends the connection",
        ),
    ] = DEFAULTS.max_frame_size
    http2_max_decompressed_size: Annotated[
        PositiveSize,
        Meta(description="maximum bytes of a compressed message when it is decompressed; more end the stream"),
    ] = DEFAULTS.max_decompressed_size
    http2_stream_window: Annotated[
        int,
        Meta(
            ge=65535,
            le=2147483647,
            extra={"format": "size"},
            description="bytes that a proxy may send on a stream before the picker reads them",
        ),
    ] = DEFAULTS.stream_window
    http2_connection_window: Annotated[
        int,
        Meta(
            ge=65535,
            le=2147483647,
            extra={"format": "size"},
            description="bytes that a proxy may send on all streams of a connection before the picker reads them",
        ),
    ] = DEFAULTS.connection_window
    http2_send_buffer: Annotated[
        PositiveSize,
        Meta(
            description="bytes of a stream, or of a connection, that may wait until the proxy reads them; "
            "then the picker produces no more"
        ),
    ] = DEFAULTS.send_buffer
    http2_resets_per_second: Annotated[
        float,
        Meta(
            gt=0,
            description="maximum rate of streams that a proxy resets before they are answered; ten seconds' worth may "
            "come at once; more end the connection",
        ),
    ] = DEFAULTS.resets_per_second
    http2_control_frames_per_second: Annotated[
        float,
        Meta(
            gt=0,
            description="maximum rate of frames that carry no message, such as PING and SETTINGS; ten seconds' worth "
            "may come at once; more end the connection",
        ),
    ] = DEFAULTS.control_frames_per_second
    http2_handshake_timeout: Annotated[
        PositiveDuration, Meta(description="time limit for TLS and the beginning of HTTP/2 on a new connection")
    ] = DEFAULTS.handshake_timeout
    http2_idle_timeout: Annotated[
        Duration, Meta(description="how long a connection stays open without a stream; 0: forever")
    ] = DEFAULTS.idle_timeout
    http2_keepalive_time: Annotated[
        Duration, Meta(description="silence after which a proxy gets a PING; 0 never sends one")
    ] = DEFAULTS.keepalive_time
    http2_keepalive_timeout: Annotated[
        PositiveDuration, Meta(description="time limit for the answer to a keepalive PING")
    ] = DEFAULTS.keepalive_timeout
    http2_stall_timeout: Annotated[
        PositiveDuration, Meta(description="how long a proxy may leave an answer unread, or a frame incomplete")
    ] = DEFAULTS.stall_timeout

    def http2_options(self, max_message_size: int) -> Http2Options:
        """What the servers get."""
        given = {name: getattr(self, f"http2_{name}") for name in Http2Options.__struct_fields__[1:]}
        return Http2Options(max_message_size=max_message_size, **given)
