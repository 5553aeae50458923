"""Answers a routed request: everything that its proxy waits for, in the order of the proxy's messages."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, repeat

from services.picker.extproc import outgoing
from services.picker.extproc.outgoing import Mutation

_LONG = 2**20
"""Bytes of a body of which the answers are made while they are asked for."""
_MANY = 100
"""Body messages, more than proxies send without an answer: theirs are made while they are asked for, too."""


def request_answers(
    mutation: Mutation,
    body: Sequence[bytes | memoryview],
    size: int,
    *,
    headers: bool,
    chunks: int,
    trailers: bool,
    streamed: bool,
) -> tuple[list[bytes], Iterator[bytes] | None]:
    """The answers, and what follows them: a long body on its way back. The first answer carries the decision.

    `body` is in pieces if it was changed, and had `size` bytes when it came. `headers`, `chunks` and `trailers` say
    what waits for an answer; a `streamed` body goes back even if it is unchanged.
    """
    if chunks == 1 and len(body) == 1 and not (headers or trailers or streamed):  # BUFFERED, as in most conversations
        return [outgoing.answer_body(mutation)], None
    answers: list[bytes] = []
    echo: Iterator[bytes] | None = None
    rest: Iterable[bytes] = ()
    pending: Mutation | None = mutation
    changed = len(body) > 1
    if headers:
        answers.append(outgoing.answer_headers(mutation))
        pending = None
    if streamed:
        if size or chunks:
            pieces = outgoing.echoing(body, not trailers, pending)
            if size > _LONG:
                echo = iter(pieces)
            else:
                answers.extend(pieces)
    else:
        if pending is not None and chunks:
            chunks -= 1
            if changed and size > _LONG:
                echo = outgoing.replacing(pending, body)
            else:
                answers.append(outgoing.answer_body(pending, body if changed else ()))
        if chunks > _MANY and echo is None:
            echo = iter(())
        rest = repeat(outgoing.REQUEST_BODY_UNCHANGED, chunks)
    if trailers:
        rest = chain(rest, (outgoing.REQUEST_TRAILERS_UNCHANGED,))
    if echo is None:
        answers.extend(rest)
        return answers, None
    return answers, chain(echo, rest)
