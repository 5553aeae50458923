"""Records a message of each type as the code at hand writes it: the fields that it knows, of the types that it knows.

    .venv/bin/python tests/unit/shared/bus/recorded/record.py > tests/unit/shared/bus/recorded/NAME.json

Before a change of `shared.bus.messages`, or before a release, record what others may still send afterwards. A recording
stays as long as processes that write such messages may run beside today's.
"""

import json
import sys
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path.cwd()))

from shared import model
from shared.bus import messages
from shared.bus.codec import encode, encode_fact
from shared.bus.columns import endpoint_hash, pack_ages, pack_counts, pack_floats, pack_hashes

WIRE = "WaitingQueueSize/core-metrics-extractor"
ADAPTERS = "ActiveModels/core-metrics-extractor"
ID = "default/a1"


def made(module: Any, name: str, /, **fields: Any) -> Any:
    """A struct of that name without the fields that this version doesn't know; None if it doesn't know the name."""
    known = getattr(module, name, None)
    return known and known(**{field: fields[field] for field in known.__struct_fields__ if field in fields})


def facts() -> dict[str, Any]:
    target = made(model, "Target", model="base", weight=3)
    return {
        "default_p.endpoint.default/a1": made(
            model,
            "Endpoint",
            id=ID,
            name="a1",
            address="10.0.0.1",
            port=8000,
            labels={"zone": "a"},
            host="a1.example",
            rank=1,
            node="n1",
            node_address="10.1.0.1",
            uid="u-1",
        ),
        "default_p.pool": made(model, "Pool", name="p", selector={"app": "vllm"}, target_ports=(8000,)),
        "default_p.objective.batch": made(model, "Objective", name="batch", priority=-1),
        "default_p.rewrite.r": made(
            model, "ModelRewrite", name="r", created=5.0, rules=(made(model, "RewriteRule", targets=(target,)),)
        ),
        "default_p.model.m": made(model, "Model", name="m", model_name="chat", targets=(target,), created=5.0),
        "default_p.config": made(model, "Configuration", text="apiVersion: llm-d.ai/v1alpha1\n", origin="file"),
    }


def samples() -> dict[str, Any]:
    queue = made(
        messages,
        "QueueTable",
        priorities=pack_counts([0]),
        flows=pack_hashes([7]),
        **{name: pack_counts([2]) for name in ("requests", "tokens", "ages", "running", "dispatched", "served")},
    )
    blocks = {"servers": pack_hashes([5]), "counts": pack_counts([2]), "blocks": pack_hashes([8, 9])}
    batch = made(messages, "PrefixBatch", sender="p1", run=3, sequence=1, hashing="1: x", withdrawn=b"\0", **blocks)
    origin = made(messages, "PrefixOrigin", id="p1", run=3, sequence=1)
    return {
        "Synced": made(messages, "Synced", epoch=9, sequence=6, count=6, digest=2**63, age=1.5),
        "Epoch": made(messages, "Epoch", epoch=9, owner="w1"),
        "Frame": made(
            messages,
            "Frame",
            sender="c",
            sent=5.0,
            sequence=2,
            run=3,
            ids=(ID, "default/a2"),
            columns={WIRE: pack_floats([3.0, 4.0])},
            ages={WIRE: pack_ages([0.1, 0.2]), ADAPTERS: pack_ages([0.1, 0.2])},
            objects={ADAPTERS: [["sql"], None]},
            absent={WIRE: []},
        ),
        "Load": made(
            messages,
            "Load",
            sender="p1",
            sent=5.0,
            sequence=2,
            run=3,
            ids=pack_hashes([endpoint_hash(ID)]),
            requests=pack_counts([4]),
            tokens=pack_counts([400]),
            queue=queue,
        ),
        "PrefixBatch": batch,
        "PrefixRequest": made(messages, "PrefixRequest", sender="p1", run=3, after=1),
        "PrefixPiece": made(
            messages,
            "PrefixPiece",
            run=3,
            sequence=1,
            batches=[encode(batch)] if batch else [],
            origins=[origin],
            marks=pack_hashes([1, 1]),
            **blocks,
        ),
        "Member": made(messages, "Member", id="c1", tier="collector", sent=5.0),
        "Candidate": made(messages, "Candidate", owner="w1", fitness=(1, 0)),
        "Holder": made(messages, "Holder", owner="w1"),
        "Query": made(messages, "Query", kind="status", within=1.0),
        "AnswerPiece": made(messages, "AnswerPiece", sender="p1", tier="picker", run=3, number=0, content=b"{}"),
        "Drain": made(messages, "Drain", endpoint="default/e", drain=True, by="somebody"),
        "ActionResult": made(messages, "ActionResult", sender="w1", error="why not"),
    }


def recording() -> dict[str, str]:
    """Hexadecimal bytes by the type of message; of facts by their keys."""
    found = {name: encode(message).hex() for name, message in samples().items() if message is not None}
    for number, (key, fact) in enumerate(facts().items()):
        envelope = made(messages, "FactEnvelope", epoch=9, sequence=number + 1, fact=msgspec.Raw(encode_fact(fact)))
        found[f"FactEnvelope {key}"] = encode(envelope).hex()
    return found


if __name__ == "__main__":
    print(json.dumps(recording(), indent=1))
