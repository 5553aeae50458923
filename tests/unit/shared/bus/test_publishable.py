"""Which facts can be messages."""

import re

import pytest

from shared.bus.codec import decode_fact, encode_fact
from shared.bus.errors import Malformed
from shared.bus.publishable import HEADROOM, MAX_FACT, MAX_NAME, MAX_POOL, fact_limit, fault
from shared.bus.subjects import Subjects, fact_key
from shared.model import (
    Configuration,
    Endpoint,
    Fact,
    Model,
    ModelRewrite,
    Objective,
    Pool,
    RewriteRule,
    Target,
)


def endpoint(id: str = "default/a", rank: int = 0, **labels: str) -> Endpoint:
    return Endpoint(id=id, name="a", address="10.0.0.1", port=80, rank=rank, labels=labels)


@pytest.mark.parametrize(
    "fact",
    [
        endpoint(),
        endpoint(label="größer"),
        endpoint(id="d/" + "x" * (MAX_NAME - 2)),
        Pool(name="a" * 5000),
        Configuration(text="x" * (MAX_FACT - 50)),
    ],
    ids=["plain", "text", "long name", "pool's name is in no key", "large"],
)
def test_what_a_message_can_hold_can_be_published(fact: Fact) -> None:
    assert fault(fact) is None


@pytest.mark.parametrize(
    ("fact", "reason"),
    [
        (endpoint(label="\ud800"), "no message can hold it: 'utf-8' codec can't encode character"),
        (endpoint(id="default/\udcff"), "no message can hold it: 'utf-8' codec can't encode character"),
        (Configuration(text="", origin="\udcff.yaml"), "no message can hold it: 'utf-8' codec"),
        (endpoint(rank=2**70), "no message can hold it: can't serialize ints"),
        (endpoint(label="x" * 1_100_000), r"it makes a message of 1100\d\d\d bytes; NATS takes 1040384 at most"),
        (Configuration(text="x" * 1_100_000), r"it makes a message of 1100\d\d\d bytes"),
        (endpoint(id="d/" + "." * 600), "its name takes 1802 bytes of a key on the bus; 1536 are allowed"),
        (Objective(name="漢" * 253), "its name takes 2277 bytes of a key"),
        (Model(name="x" * 5000, model_name="m"), "its name takes 5000 bytes of a key"),
    ],
    ids=["label", "id", "origin", "number", "large label", "large text", "dots", "characters", "long name"],
)
def test_what_no_message_can_hold_says_why(fact: Fact, reason: str) -> None:
    assert re.match(reason, fault(fact) or "")


@pytest.mark.parametrize(
    ("max_payload", "expected"), [(2**20, MAX_FACT), (2**23, MAX_FACT), (2**16, 2**16 - HEADROOM), (64, 64 - HEADROOM)]
)
def test_a_server_may_take_less_than_others_and_more_counts_for_nothing(max_payload: int, expected: int) -> None:
    assert fact_limit(max_payload) == expected
    assert fault(endpoint(), fact_limit(max_payload)) is None or max_payload == 64


def test_a_line_of_the_protocol_holds_the_longest_key() -> None:
    key = fact_key("p" * MAX_POOL, Objective(name="x" * MAX_NAME))
    line = f"HPUB {Subjects('x' * 100).fact(key)} _INBOX.{'x' * 22}.{'x' * 22} {MAX_FACT} {MAX_FACT}\r\n"
    assert len(line) < 4096


RULE = RewriteRule(models=("m" * 50,), targets=(Target(model="t"),))


def labelled(count: int) -> Fact:
    return Endpoint(id="a", name="a", address="10.0.0.1", port=80, labels={f"{number}": "" for number in range(count)})


@pytest.mark.parametrize(
    ("sound", "excessive"),
    [
        (labelled(300), labelled(301)),
        (Pool(name="a", target_ports=(1,) * 300), Pool(name="a", target_ports=(1,) * 301)),
        (
            Model(name="a", model_name="m", targets=(Target(model="t"),) * 300),
            Model(name="a", model_name="m", targets=(Target(model="t"),) * 301),
        ),
        (ModelRewrite(name="a", rules=(RULE,) * 100), ModelRewrite(name="a", rules=(RULE,) * 101)),
    ],
    ids=["labels", "ports", "targets", "rules"],
)
def test_a_fact_of_more_entries_than_anybody_needs_is_neither_published_nor_read(sound: Fact, excessive: Fact) -> None:
    assert fault(sound, max_entries=300) is None
    assert decode_fact(encode_fact(sound), 300) == sound
    assert "entries; 300 are allowed" in (fault(excessive, max_entries=300) or "")
    with pytest.raises(Malformed, match="entries; 300 are allowed"):
        decode_fact(encode_fact(excessive), 300)
    assert decode_fact(encode_fact(excessive)) == excessive
