"""The errors of the bus. Every error that a caller may have to handle derives from `BusError`."""


class BusError(Exception):
    """The bus couldn't do what it was asked for."""


class BusOptionError(BusError, ValueError):
    """An option of the connection, a prefix or a name can't be used. `options` are the names of the arguments, `reason`
    is the rest of the message, so that a caller can name the source of the values."""

    def __init__(self, reason: str, *options: str) -> None:
        super().__init__(f"{' and '.join(options)}: {reason}" if options else reason)
        self.reason = reason
        self.options = options


class Malformed(BusError):
    """Bytes that are no message of the expected kind: not MessagePack, an unknown tag, a wrong type or length."""


class NotConnected(BusError):
    """There is no connection to a NATS server at the moment; what was asked for has not been sent."""


class RequestTimeout(BusError):
    """No answer in time. Whether the request was carried out is not known."""


class NoResponders(BusError):
    """No process subscribes to the subject. For a JetStream subject, the stream or JetStream itself is missing."""


class JetStreamError(BusError):
    """JetStream refused: `code` as in HTTP, `error_code` as in the nats-server's list of errors, `description`."""

    def __init__(self, code: int, error_code: int, description: str) -> None:
        super().__init__(f"{description} (code {code}, error {error_code})")
        self.code = code
        self.error_code = error_code
        self.description = description


class WrongLastSequence(JetStreamError):
    """Error 10071: the key isn't at the revision that the write expects. Another process wrote the key, or it is
    gone."""


class NoRoom(JetStreamError):
    """The store, the account or the stream is full: nothing can be written, not even a delete that readers are told
    of."""


class LostLeadership(BusError):
    """Another owner has taken the bucket, or the lease is gone: nothing more may be written."""
