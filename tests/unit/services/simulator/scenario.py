"""Builds engines and work for tests, and runs an engine until nothing is under way."""

import json
from typing import Any

from services.simulator.counters import FinishReason
from services.simulator.engine import SECOND, Engine
from services.simulator.requests import Call
from services.simulator.sequence import EngineRequest, RequestOutput
from services.simulator.settings import SimulatorSettings
from services.simulator.tokens import BYTES_PER_TOKEN, Prompt

MS = SECOND // 1000


def settings(**given: Any) -> SimulatorSettings:
    """Round numbers: 1 ms a prompt token, 10 ms an output token, a tenth more for each further request, blocks of 4."""
    plain = {
        "slots": 4,
        "kv_blocks": 1000,
        "block_tokens": 4,
        "prefill_time": 0.001,
        "prefill_chunk": 100,
        "decode_time": 0.01,
        "decode_growth": 0.1,
        "adapter_load_time": 0.5,
    }
    return SimulatorSettings(**{**plain, **given})


def text(tokens: int, word: str = "abc ") -> Prompt:
    """A prompt of that many tokens; its words differ from each other and from those of another `word`."""
    assert len(word) == BYTES_PER_TOKEN
    return Prompt(b"".join(f"{word[0]}{index:03d}".encode()[:BYTES_PER_TOKEN] for index in range(tokens)))


def work(id: str, prompt: Prompt, output: int, **given: Any) -> EngineRequest:
    return EngineRequest(
        id=id, prompt=prompt, output=f"{id[:3]:>3} ".encode() * output, finish=FinishReason.LENGTH, **given
    )


def run_out(engine: Engine) -> list[RequestOutput]:
    """Go from event to event until there is none; everything that was reported."""
    reported: list[RequestOutput] = []
    while (at := engine.next_event()) is not None:
        reported += engine.advance(at)
    return reported


def ends(reported: list[RequestOutput]) -> dict[str, int]:
    """When each request ended."""
    return {each.id: each.at for each in reported if each.finished}


def events(data: bytes) -> list[Any]:
    """Each event's JSON; its name is the one that the JSON has."""
    found = []
    blocks = data.decode().split("\n\n")
    assert blocks.pop() == ""
    for block in blocks:
        name, _, text = block.partition("\n")
        found.append(json.loads(text.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def prompt(call: Call) -> bytes:
    return call.choices[0].request.prompt.data


def progress(call: Call, tokens: int, *, index: int = 0, cached: int = 0) -> RequestOutput:
    work = call.choices[index].request
    return RequestOutput(work.id, 0, tokens, cached, tokens == work.output_tokens)


def end(call: Call, index: int = 0, *, cached: int = 0) -> RequestOutput:
    return progress(call, call.choices[index].request.output_tokens, index=index, cached=cached)
