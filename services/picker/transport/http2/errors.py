"""What ends a connection or a stream, and the codes that tell the peer why (RFC 9113, section 7)."""

from enum import IntEnum


class ErrorCode(IntEnum):
    """Of RST_STREAM and GOAWAY frames."""

    NO_ERROR = 0x0
    PROTOCOL_ERROR = 0x1
    INTERNAL_ERROR = 0x2
    FLOW_CONTROL_ERROR = 0x3
    SETTINGS_TIMEOUT = 0x4
    STREAM_CLOSED = 0x5
    FRAME_SIZE_ERROR = 0x6
    REFUSED_STREAM = 0x7
    CANCEL = 0x8
    COMPRESSION_ERROR = 0x9
    ENHANCE_YOUR_CALM = 0xB


class ConnectionFailed(Exception):
    """The connection is to be closed, with a GOAWAY frame that has this code and text."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(f"{code.name}: {text}")
        self.code, self.text = code, text


class StreamFailed(Exception):
    """The stream is to be reset with this code; the connection goes on."""

    def __init__(self, stream_id: int, code: ErrorCode, text: str) -> None:
        super().__init__(f"stream {stream_id}, {code.name}: {text}")
        self.stream_id, self.code = stream_id, code


def violated(text: str) -> ConnectionFailed:
    """The peer broke the protocol."""
    return ConnectionFailed(ErrorCode.PROTOCOL_ERROR, text)


def flooded(text: str) -> ConnectionFailed:
    """The peer does more of something than a well-behaved one would."""
    return ConnectionFailed(ErrorCode.ENHANCE_YOUR_CALM, text)
