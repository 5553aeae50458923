"""`token-producer`: tokens of pictures and videos, and where they count."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from services.picker.request import Headers, Media
from services.picker.scheduling.cycle import PREFIX_MATCH, TOKENIZED_PROMPT, Cycle, PrefixMatch
from services.picker.scheduling.producers.token import TokenProducer, VideoEstimate
from shared.config import load
from shared.plugin import Registry
from tests.unit.services.picker.scheduling.plugins import plugin, read
from tests.unit.services.picker.world import cycle, pool, request

HD = Media(b"<image 1>", 1280, 720)
UNKNOWN = Media(b"<image 2>")
VIDEO = Media(b"<video 3>", video=True)
QWEN = {
    "frames": {
        "mode": "sampled",
        "maxFrames": 768,
        "minFrames": 4,
        "sampled": {"sampleFPS": 2, "temporalPatchSize": 2},
    },
    "tokensPerFrame": {"mode": "dynamic", "dynamic": {"factor": 1024}},
    "defaultResolution": {"width": 1280, "height": 720},
    "maxVideoTokens": 12288,
}
GEMMA = {
    "frames": {"mode": "strided", "maxFrames": 100, "strided": {"frameStride": 12}},
    "tokensPerFrame": {"mode": "static", "static": {"numTokensPerFrame": 64}},
}


def produced(parameters: Any, *media: Media, prompt: bytes = b"", headers: Mapping[str, str] | None = None) -> Cycle:
    text = prompt or b"".join(item.marker for item in media)
    named = [(f"x-llm-d-video-{name}", value) for name, value in (headers or {}).items()]
    run = cycle(pool("a1", "a2", "a3"), request(text, media=media, multimodal=True, headers=named))
    plugin(TokenProducer, parameters).produce(run)
    return run


@pytest.mark.parametrize(
    ("estimate", "media", "tokens"),
    [
        ({}, HD, 900),  # 1280 · 720 / 1024
        ({}, UNKNOWN, 225),  # 640 · 360 / 1024
        ({"image": {"defaultResolution": {"width": 1280, "height": 720}}}, UNKNOWN, 900),
        ({"image": {"dynamic": {"factor": 784}}}, HD, 1175),
        ({"image": {"dynamic": {"factor": 0}}}, HD, 900),
        ({"image": {}}, Media(b"x", 2, 2), 1),
        ({"image": {"mode": "static", "static": {"staticToken": 256}}}, HD, 256),
        ({"image": {"mode": "static"}}, HD, 1),
        ({}, VIDEO, 20 * 225),  # 10 s · 2 frames
        ({"video": QWEN}, VIDEO, 10 * 900),
        ({"video": {**QWEN, "defaultDuration": 60}}, VIDEO, 12288),
        ({"video": GEMMA}, VIDEO, 20 * 64),  # 10 s · 24 frames / 12
    ],
)
def test_the_estimate(estimate: Any, media: Media, tokens: int) -> None:
    run = produced({"estimate": estimate}, media)
    found = run.get(TOKENIZED_PROMPT)
    assert found is not None
    assert found.tokens.tolist() == [tokens]
    assert run.prompt_tokens == tokens + len(media.marker) // 4 + (len(media.marker) < 4)


@pytest.mark.parametrize(
    ("headers", "estimate", "tokens"),
    [
        ({"duration-seconds": "3"}, {}, 6 * 225),
        ({"duration-seconds": "0.5", "resolution": "1280x720"}, {}, 900),
        ({"resolution": "1280 X 720"}, {"video": QWEN}, 9000),
        ({"fps": "12"}, {"video": GEMMA}, 10 * 64),
        ({"duration-seconds": "1e6"}, {"video": GEMMA}, 100 * 64),
        *(({"duration-seconds": wrong}, {}, 4500) for wrong in ("", "-1", "x", "nan", "inf", "0")),
        *(({name: "0" * 30 + wrong}, {}, 4500) for name, wrong in (("duration-seconds", "3.0"), ("fps", "12.0"))),
        ({"resolution": " " * 30 + "9x9"}, {}, 4500),
        *(({"resolution": wrong}, {}, 4500) for wrong in ("x", "1280", "0x720", "axb", "1280x", "9999999x9999999")),
        ({"duration-seconds": "1e8", "resolution": "999999x999999"}, {}, 10**6),
    ],
)
def test_headers_describe_a_requests_videos(headers: dict[str, str], estimate: Any, tokens: int) -> None:
    found = produced({"estimate": estimate}, VIDEO, headers=headers).get(TOKENIZED_PROMPT)
    assert found is not None
    assert found.tokens.tolist() == [tokens]


def test_what_is_alike_for_all_media_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand fit into 16 kB, prompts have megabytes, and headers can have 256 KiB."""
    searched, estimated = list[bytes](), list[Headers]()

    class Prompt(bytes):
        def find(self, marker: Any, *args: Any) -> int:
            searched.append(marker)
            return super().find(marker, *args)

    def tokens(self: VideoEstimate, headers: Headers) -> int:
        estimated.append(headers)
        return 1

    monkeypatch.setattr(VideoEstimate, "tokens", tokens)
    absent = Media(b"<not in the prompt>", video=True)
    found = produced({}, HD, *[absent] * 1000, prompt=Prompt(b"x" + HD.marker + b"y" * 80)).get(TOKENIZED_PROMPT)
    assert found is not None
    assert found.ends.tolist() == [1 + len(HD.marker)] * 1001
    assert (searched, len(estimated)) == ([HD.marker, absent.marker], 1)


def test_cached_pictures_are_no_work() -> None:
    """Blocks of 4 tokens are 16 bytes. The pictures end at bytes 30 and 60 of 80: 2 of 5 blocks have the first."""
    marks = Media(b"<picture 1>", 1280, 720), Media(b"<picture 2>", 640, 360)
    prompt = bytearray(b"x" * 80)
    prompt[19:30], prompt[49:60] = marks[0].marker, marks[1].marker
    run = produced({}, *marks, prompt=bytes(prompt))
    assert run.prompt_tokens == 20 + 900 + 225
    run.put(PREFIX_MATCH, PrefixMatch(np.array([0.0, 2.0, 5.0]), 5, 4))
    assert run.uncached_tokens(run.candidates).tolist() == [1145.0, 1145.0 - 8 - 900, 0.0]
    assert [run.uncached_tokens_at(row) for row in range(3)] == [1145, 237, 0]


def test_what_is_counted_or_has_no_pictures_isnt_estimated() -> None:
    for content in ({}, {"multimodal": True, "prompt_tokens": 5, "media": (HD,)}, {"multimodal": True}):
        run = cycle(pool("a1"), request(b"text" * 5, **content))
        plugin(TokenProducer, {}).produce(run)
        assert run.get(TOKENIZED_PROMPT) is None
        assert run.prompt_tokens == 5


def test_a_tokenizer_that_isnt_here_is_said_and_one_back_end_is_enough() -> None:
    document = (
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n"
        "- {type: token-producer, parameters: {modelName: m, vllm: {url: 'http://localhost:8000'}}}\n"
        "- type: token-load-scorer\n"
    )
    config = load(document, Registry.installed())
    assert any("no tokenizer is called here" in str(warning) for warning in config.warnings)
    assert "token-producer" in config.producers
    _, errors = read(TokenProducer.Parameters, {"estimate": {}, "vllm": {}})
    assert errors == ["at: estimate, vllm, udsTokenizerConfig: at most one of them"]


def test_it_runs_only_where_somebody_counts_tokens() -> None:
    head = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: token-producer\n"
    for scorer, runs in (("queue-scorer", False), ("token-load-scorer", True), ("context-length-aware", True)):
        document = f"{head}- {{name: it, type: {scorer}}}\n"
        document += "schedulingProfiles: [{name: default, plugins: [{pluginRef: it}]}]\n"
        config = load(document, Registry.installed())
        assert ("token-producer" in config.producers) is runs, scorer
