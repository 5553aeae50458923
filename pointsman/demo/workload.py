"""The requests of the demo and the times between them.

Arrivals are a Poisson process. Each request begins with one of a few long system prompts, some much more frequent than
others, as with applications, so that prefix caches have hits. The same seed gives the same requests.
"""

import json
from itertools import accumulate
from random import Random
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from pointsman.demo.plan import ADAPTER, BASE

Kind: TypeAlias = Literal["chat", "completion"]
PATHS: dict[Kind, str] = {"chat": "/v1/chat/completions", "completion": "/v1/completions"}

_APPLICATIONS = 20
_PROMPT_WORDS = (330, 560)
"""Minimum and maximum length of a system prompt in words: about 500 to 850 tokens."""
_SKEW = 1.0
"""Exponent of Zipf's law over the applications: the first has 28 % of the requests, the last 1.4 %."""
_CHAT, _STREAMED, _ADAPTED = 0.7, 0.6, 0.25
"""Shares of chats, of streamed responses, and of requests for the adapter."""
_ANSWER_TOKENS = (12, 48)
_TEXT = (
    "train track signal lever points switch platform cargo engine wagon bridge tunnel station driver guard timetable "
    "crossing siding depot gauge sleeper ballast whistle brake coupling freight express local junction route"
)
_WORDS = _TEXT.split()


class Request(Struct, frozen=True, kw_only=True):
    """One request, ready to be sent."""

    number: int
    wait: float
    """Seconds after the previous request."""
    kind: Kind
    model: str
    stream: bool
    tokens: int
    """Requested length of the response; a right one has exactly as many tokens."""
    application: int
    """Number of the system prompt."""
    body: bytes

    @property
    def path(self) -> str:
        return PATHS[self.kind]


class Workload:
    """An endless sequence of requests, `rate` a second on average."""

    def __init__(self, rate: float, seed: int) -> None:
        self.rate = rate
        self._random = Random(seed)
        self._prompts = [self._words(self._random.randint(*_PROMPT_WORDS)) for _ in range(_APPLICATIONS)]
        self._shares = list(accumulate((n + 1) ** -_SKEW for n in range(_APPLICATIONS)))
        self.made = 0

    def next(self) -> Request:
        """The next request."""
        random = self._random
        self.made += 1
        [application] = random.choices(range(_APPLICATIONS), cum_weights=self._shares)
        question = f"Question {self.made}: {self._words(random.randint(8, 40))}?"
        kind: Kind = "chat" if random.random() < _CHAT else "completion"
        stream = random.random() < _STREAMED
        model = ADAPTER if random.random() < _ADAPTED else BASE
        tokens = random.randint(*_ANSWER_TOKENS)
        return Request(
            number=self.made,
            wait=random.expovariate(self.rate),
            kind=kind,
            model=model,
            stream=stream,
            tokens=tokens,
            application=application,
            body=_body(kind, model, self._prompts[application], question, stream, tokens),
        )

    def _words(self, count: int) -> str:
        return " ".join(self._random.choices(_WORDS, k=count))

    def __repr__(self) -> str:
        return f"<Workload {self.rate:g}/s, {self.made} made>"


def _body(kind: Kind, model: str, prompt: str, question: str, stream: bool, tokens: int) -> bytes:
    """`ignore_eos`, which vLLM and SGLang support, fixes the length of the response, so that it can be checked."""
    content: dict[str, Any] = {"model": model, "max_tokens": tokens, "ignore_eos": True}
    if kind == "chat":
        content["messages"] = [{"role": "system", "content": prompt}, {"role": "user", "content": question}]
    else:
        content["prompt"] = f"{prompt}\n\n{question}"
    if stream:
        content |= {"stream": True, "stream_options": {"include_usage": True}}
    return json.dumps(content).encode()
