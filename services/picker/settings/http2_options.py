"""What the HTTP/2 server takes from its peers. Everything that a peer can make grow has a limit."""

from msgspec import Struct


class Http2Options(Struct, frozen=True, kw_only=True):
    """Limits of a server and of each of its connections."""

    max_message_size: int
    """Bytes of a gRPC message; a longer one ends its call (RESOURCE_EXHAUSTED)."""
    max_decompressed_size: int = 2 * 2**20
    """The same for a compressed message when it is decompressed, which holds the event loop."""
    max_concurrent_streams: int = 20_000
    """Open streams of a connection (SETTINGS_MAX_CONCURRENT_STREAMS); further ones are refused (REFUSED_STREAM)."""
    max_streams: int = 50_000
    """Open streams of all connections; further ones are refused (REFUSED_STREAM)."""
    max_connections: int = 10_000
    """Open connections, from their TLS handshake on; further ones are closed at once."""
    max_header_list: int = 16 * 2**10
    """Bytes of a request's headers (SETTINGS_MAX_HEADER_LIST_SIZE), compressed or not; more end the stream
    (RESOURCE_EXHAUSTED), and more than four times as many the connection."""
    max_continuations: int = 16
    """CONTINUATION frames of one header block; more end the connection."""
    max_frame_size: int = 64 * 2**10
    """Bytes of a frame's payload (SETTINGS_MAX_FRAME_SIZE)."""
    stream_window: int = 2**20
    """Bytes that a peer may send on a stream ahead of its reader (SETTINGS_INITIAL_WINDOW_SIZE)."""
    connection_window: int = 16 * 2**20
    """The same for all streams of a connection together."""
    send_buffer: int = 256 * 2**10
    """Bytes of a stream that wait for the peer's window before its call is to make no more, and bytes of a connection
    that wait for its socket before nothing more is read from it."""
    resets_per_second: float = 200.0
    """Streams that a peer may open and reset before they are answered; ten seconds' worth at once. More end the
    connection."""
    control_frames_per_second: float = 200.0
    """PING, SETTINGS, PRIORITY and unknown frames, and frames that carry nothing; ten seconds' worth at once. More end
    the connection."""
    handshake_timeout: float = 10.0
    """Seconds for TLS, for the preface, for the acknowledgement of our SETTINGS (SETTINGS_TIMEOUT), and for all of a
    request that isn't gRPC's."""
    idle_timeout: float = 3600.0
    """Seconds without a stream after which a connection is closed (GOAWAY); 0 never."""
    keepalive_time: float = 30.0
    """Seconds of silence after which a peer gets a PING; 0 never."""
    keepalive_timeout: float = 10.0
    """Seconds within which it has to say anything."""
    stall_timeout: float = 60.0
    """Seconds for which a peer may leave its window or its socket closed while something waits for it, and for the rest
    of a frame or a header block that has begun."""


DEFAULTS = Http2Options(max_message_size=0)
"""The defaults; the limit of a message is that of a body, and some more."""
