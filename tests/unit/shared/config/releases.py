"""What a document in a release's style is, and the warnings of what releases wrote otherwise."""

from msgspec import Struct

DATA = "data: deprecated; write dataLayer"
THRESHOLDS = "saturationDetector: thresholds here are deprecated; write a utilization-detector plugin"
QUEUES = "featureGates: flowControl: requests are admitted or shed at once; queueing isn't available"


def renamed(plugin: int, former: str, now: str) -> str:
    return f"plugins[{plugin}].type: {former} is deprecated; write {now}"


def in_tokens(plugin: int, former: str, tokens: int) -> str:
    """Warning of a block's size in bytes on the scorer."""
    return (
        f"plugins[{plugin}].parameters: {former} is deprecated; "
        f"write blockSizeTokens: {tokens} (tokens, not bytes) on approx-prefix-cache-producer"
    )


class Release(Struct, frozen=True):
    """A document, the warnings that it loads with, and a slip in it with what is said of that."""

    text: str
    warnings: tuple[str, ...]
    slip: tuple[str, str]
    said: str
