"""What must hold of files of endpoints and resources: each has problems, named in few words, or states facts, every one
of which can be published and read again.

An input is a file's text.
"""

import msgspec

from services.watcher.documents import read_documents
from services.watcher.resources import PoolId
from shared.bus.codec import decode_fact, encode, encode_fact
from shared.bus.facts import Put, parse_entry
from shared.bus.messages import FactEnvelope
from shared.bus.publishable import fault
from shared.bus.subjects import fact_key, pool_token
from shared.config.problems import Problems
from shared.datalayer.objects import ObjectKind
from shared.model import Configuration, Endpoint, Pool

POOL = PoolId("default", "pool")
TOKEN = pool_token(POOL.namespace, POOL.name)
WANTED = (ObjectKind.of("v1", "Node"), ObjectKind.of("inference.networking.x-k8s.io/v1alpha2", "InferenceObjective"))
MAX_PROBLEM = 1000
"""Characters."""


def check(data: bytes) -> None:
    """Raises AssertionError, or what the readers let out, for an input that shows a fault."""
    text = data.decode("utf-8", "replace")
    for pool, wanted in ((None, ()), (POOL, WANTED)):
        problems = Problems()
        documents = read_documents(text, "file", problems, pool=pool, object_kinds=wanted)
        for problem in (*problems.errors, *problems.warnings):
            assert problem.message
            assert len(problem.message) < MAX_PROBLEM, problem
            # where a document breaks off, the line after the last one
            assert problem.line is None or 1 <= problem.line <= len(text.splitlines()) + 1, problem
            str(problem).encode()
        if problems.errors:
            continue
        facts = documents.facts()
        keys = [fact_key(TOKEN, fact) for fact in facts]
        for key, fact in zip(keys, facts, strict=True):
            assert fault(fact) is None, fact
            raw = encode_fact(fact)
            assert decode_fact(raw) == fact
            entry = parse_entry(key, encode(FactEnvelope(epoch=1, sequence=1, fact=msgspec.Raw(raw))), {})
            assert isinstance(entry, Put)
            assert entry.fact == fact
            if isinstance(fact, Endpoint):
                fact.authority.encode("ascii" if fact.address else "utf-8")
        if pool is not None:
            assert len(set(keys)) == len(keys), keys
            pools = [PoolId(fact.namespace, fact.name) for fact in facts if isinstance(fact, Pool)]
            assert pools in ([], [POOL])
        assert sum(isinstance(fact, Configuration) for fact in facts) <= 1
        for found in documents.objects:
            msgspec.json.encode(found)
