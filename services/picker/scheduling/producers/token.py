"""`token-producer`: estimates how many tokens the pictures and videos of a prompt have.

Text needs no producer: four bytes are a token, here as in the Go original's back end `estimate`. Its other back ends
call a tokenizer; documents that name one load, with a warning, and tokens are estimated.
"""

from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta, Struct, field

from services.picker.metadata import VIDEO_DURATION, VIDEO_FPS, VIDEO_RESOLUTION
from services.picker.request import Headers
from services.picker.scheduling.cycle import TOKENIZED_PROMPT, Cycle, MediaTokens
from services.picker.scheduling.interfaces import Producer
from services.picker.state.inflight import MAX_TOKENS

Count = Annotated[int, Meta(ge=0, le=10**9)]
Number = Annotated[float, Meta(ge=0, le=1e9)]
_MAX_HEADER = 32
"""Characters of a header about a video; a longer one says nothing."""


class Resolution(Struct, frozen=True, rename="camel"):
    """Pixels."""

    width: Annotated[int, Meta(gt=0, le=10**6)] = 640
    height: Annotated[int, Meta(gt=0, le=10**6)] = 360


class Factor(Struct, frozen=True, rename="camel"):
    """Pixels of a token; 0 is the default."""

    factor: Count = 1024


class StaticImage(Struct, frozen=True, rename="camel"):
    """Tokens of every picture; 0 counts as 1."""

    static_token: Count = 0


class StaticFrame(Struct, frozen=True, rename="camel"):
    """Tokens of every frame; 0 counts as 1."""

    num_tokens_per_frame: Count = 0


class ImageEstimate(Struct, frozen=True, rename="camel"):
    """By the size of a picture, or the same for all."""

    mode: Literal["dynamic", "static", ""] = "dynamic"
    default_resolution: Resolution = Resolution()
    dynamic: Factor = Factor()
    static: StaticImage = StaticImage()

    def tokens(self, width: int, height: int) -> int:
        if self.mode == "static":
            return max(self.static.static_token, 1)
        if not (width and height):
            width, height = self.default_resolution.width, self.default_resolution.height
        return max(width * height // (self.dynamic.factor or 1024), 1)


class FrameTokens(Struct, frozen=True, rename="camel"):
    """By the size of a frame, or the same for all."""

    mode: Literal["dynamic", "static", ""] = "dynamic"
    dynamic: Factor = Factor()
    static: StaticFrame = StaticFrame()


class Sampled(Struct, frozen=True, rename="camel"):
    """Frames at a rate, `temporalPatchSize` of which are one."""

    sample_fps: Number = field(default=2.0, name="sampleFPS")
    temporal_patch_size: Count = 0


class Strided(Struct, frozen=True, rename="camel"):
    """Every so many frames of the source."""

    default_source_fps: Number = field(default=24.0, name="defaultSourceFPS")
    frame_stride: Count = 1


class Frames(Struct, frozen=True, rename="camel"):
    """How many frames the model reads."""

    mode: Literal["sampled", "strided", ""] = "sampled"
    min_frames: Count = 0
    max_frames: Count = 0
    """0: no limit."""
    sampled: Sampled = Sampled()
    strided: Strided = Strided()

    def count(self, seconds: float, fps: float) -> int:
        """Frames of a video of so many seconds; `fps` is its own rate, 0 if that isn't known."""
        strided = self.mode == "strided"
        if strided:
            frames = int(seconds * (fps or self.strided.default_source_fps or 24.0)) // max(
                self.strided.frame_stride, 1
            )
        else:
            frames = int(seconds * (self.sampled.sample_fps or 2.0))
        frames = max(frames, self.min_frames)
        if self.max_frames:
            frames = min(frames, self.max_frames)
        return frames if strided else frames // max(self.sampled.temporal_patch_size, 1)


class VideoEstimate(Struct, frozen=True, rename="camel"):
    """Frames, each of so many tokens."""

    default_resolution: Resolution = Resolution()
    default_duration: Number = 10.0
    """Seconds."""
    max_video_tokens: Count = 0
    """0: no limit."""
    tokens_per_frame: FrameTokens = FrameTokens()
    frames: Frames = Frames()

    def tokens(self, headers: Headers) -> int:
        """Tokens of a video; the request's headers may describe it."""
        size = _resolution(headers.get(VIDEO_RESOLUTION)) or self.default_resolution
        seconds = _number(headers.get(VIDEO_DURATION)) or self.default_duration or 10.0
        each = self.tokens_per_frame
        if each.mode == "static":
            frame = max(each.static.num_tokens_per_frame, 1)
        else:
            frame = max(size.width * size.height // (each.dynamic.factor or 1024), 1)
        tokens = self.frames.count(seconds, _number(headers.get(VIDEO_FPS))) * frame
        if self.max_video_tokens:
            tokens = min(tokens, self.max_video_tokens)
        return max(tokens, 1)


class Estimate(Struct, frozen=True, rename="camel"):
    """The back end that needs no tokenizer."""

    image: ImageEstimate = ImageEstimate()
    video: VideoEstimate = VideoEstimate()


class TokenParameters(Struct, frozen=True, rename="camel"):
    """The estimate, and the back ends of the Go original that aren't here."""

    estimate: Estimate | None = None
    model_name: str = ""
    vllm: dict[str, Any] | None = None
    uds_tokenizer_config: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("estimate", "vllm", "uds_tokenizer_config") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError("estimate, vllm, udsTokenizerConfig: at most one of them")


class TokenProducer(Producer):
    """`width · height / factor` for a picture, `frames · tokens of a frame` for a video."""

    TYPE = "token-producer"
    ALIASES = ("tokenizer",)
    PRODUCES = (TOKENIZED_PROMPT,)
    Parameters = TokenParameters
    parameters: TokenParameters

    def __init__(self, name: str, parameters: TokenParameters | None = None) -> None:
        super().__init__(name, parameters)
        self._estimate = self.parameters.estimate or Estimate()

    @classmethod
    def deprecations(cls, parameters: TokenParameters) -> list[str]:
        if parameters.vllm is None and parameters.uds_tokenizer_config is None and not parameters.model_name:
            return []
        return ["no tokenizer is called here: tokens are estimated; leave out modelName and the back end"]

    def produce(self, cycle: Cycle) -> None:
        content = cycle.request.content
        if not content.media or content.prompt_tokens is not None:
            return
        prompt = content.prompt
        ends, tokens, at = list[int](), list[int](), 0
        video = self._estimate.video.tokens(cycle.request.headers) if any(item.video for item in content.media) else 0
        found = 0
        for item in content.media:
            if found >= 0:  # a long prompt is searched in vain once
                found = prompt.find(item.marker, at)
                at = at if found < 0 else found + len(item.marker)
            ends.append(at)
            tokens.append(video if item.video else self._estimate.image.tokens(item.width, item.height))
        sums = np.minimum(np.cumsum(np.array(tokens, np.float64)), MAX_TOKENS)
        cycle.put(TOKENIZED_PROMPT, MediaTokens(np.array(ends, np.float64), sums))
        cycle.prompt_tokens += int(sums[-1])


def _number(text: str) -> float:
    """A positive number; 0 for what is none."""
    try:
        number = float(text) if len(text) <= _MAX_HEADER else 0.0
    except ValueError:
        return 0.0
    return number if 0 < number < 1e9 else 0.0


def _resolution(text: str) -> Resolution | None:
    """`1280x720`; None for what is none."""
    width, found, height = text.lower().partition("x") if len(text) <= _MAX_HEADER else ("", "", "")
    width, height = width.strip(), height.strip()
    if not found or not (width + height).isdecimal() or not width or not height or len(width + height) > 12:
        return None
    return Resolution(int(width), int(height)) if int(width) and int(height) else None
