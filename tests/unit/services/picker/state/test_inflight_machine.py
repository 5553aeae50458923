"""The table against a model that keeps every charge and every peer's table in a list and adds them up anew. What a peer
says counts for endpoints that have been there since. The model counts apart what is dispatched after each sample."""

from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from services.picker.state.inflight import EXPIRY, MAX_TOKENS, Charge, InFlight
from services.picker.state.layout import Layout
from shared.bus.columns import endpoint_hash, unpack_counts, unpack_hashes
from tests.unit.services.picker.world import endpoint, load

NAMES = ["a1", "a2", "a3", "a4"]
PEERS = ["one", "two"]
TOKENS = st.integers(0, 5000)


class InFlightMachine(RuleBasedStateMachine):
    charges = Bundle("charges")

    def __init__(self) -> None:
        super().__init__()
        self.table = InFlight()
        self.layout = Layout()
        self.now = 0.0
        self.held: dict[Charge, tuple[str, int]] = {}
        self.peers: dict[str, tuple[float, dict[str, tuple[int, int]]]] = {}
        self.since = Counter[str]()
        self.sampled: dict[str, float] = {}

    @rule(present=st.sets(st.sampled_from(NAMES)), address=st.sampled_from(["", "10.9.9.9"]))
    def endpoints_change(self, present: set[str], address: str) -> None:
        for name in present - self.layout.index.keys():
            self.since[name] = 0
            self.sampled.pop(name, None)
        self.layout = Layout([endpoint(name, address, 8000 + at) for at, name in enumerate(sorted(present))])
        self.table.relayout(self.layout)
        for peer, (seen, rows) in self.peers.items():
            self.peers[peer] = seen, {name: row for name, row in rows.items() if name in present}

    @rule(target=charges, name=st.sampled_from(NAMES), tokens=TOKENS | st.sampled_from([2**32, 2**62]))
    def request_is_routed(self, name: str, tokens: int) -> Charge:
        charge = self.table.charge(name, tokens)
        self.held[charge] = (name, min(tokens, MAX_TOKENS))
        self.since[name] += 1
        return charge

    @rule(charge=charges, name=st.sampled_from(NAMES))
    def another_endpoint_serves(self, charge: Charge, name: str) -> None:
        charge.move(name)
        if charge in self.held:
            self.since[self.held[charge][0]] -= 1
            self.since[name] += 1
            self.held[charge] = (name, self.held[charge][1])

    @rule(charge=charges)
    def response_begins(self, charge: Charge) -> None:
        charge.release_tokens()
        if charge in self.held:
            self.held[charge] = (self.held[charge][0], 0)

    @rule(charge=charges)
    def request_ends(self, charge: Charge) -> None:
        charge.release()
        if charge in self.held:
            self.since[self.held.pop(charge)[0]] -= 1

    @rule(charge=consumes(charges))
    def request_ends_for_good(self, charge: Charge) -> None:
        self.request_ends(charge)

    @rule(
        peer=st.sampled_from(PEERS),
        rows=st.dictionaries(st.sampled_from([*NAMES, "unknown"]), st.tuples(st.integers(0, 99), TOKENS)),
        leaving=st.booleans(),
    )
    def peer_tells(self, peer: str, rows: dict[str, tuple[int, int]], leaving: bool) -> None:
        self.table.apply(load(peer, rows, sent=self.now, leaving=leaving), self.now)
        known = self.peers.pop(peer, None)
        if not leaving:
            kept = {name: row for name, row in rows.items() if name in self.layout.index}
            self.peers[peer] = self.now, kept
            if known is not None:
                for name in self.layout.index:
                    self.since[name] += kept.get(name, (0, 0))[0] - known[1].get(name, (0, 0))[0]

    @rule(seconds=st.sampled_from([0.25, 1.0, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        silent = {peer for peer, (seen, _) in self.peers.items() if self.now - seen > EXPIRY}
        assert set(self.table.expire(self.now)) == silent
        for peer in silent:
            del self.peers[peer]

    @rule(sampled=st.sets(st.sampled_from(NAMES)), again=st.sampled_from([-0.5, 0.0, 1e-4]))
    def metrics_come(self, sampled: set[str], again: float) -> None:
        """Of some endpoints new ones, of the others those that came before, or none ever."""
        self.now += 0.05
        for name in sampled & self.layout.index.keys():
            self.since[name] = 0
            self.sampled[name] = self.now
        at = [self.sampled.get(name, -np.inf) + again * (name not in sampled) for name in self.layout.index]
        self.table.note_samples(np.array(at))

    @invariant()
    def sums_are_those_of_the_tables(self) -> None:
        assert self.table.check()

    @invariant()
    def sums_agree(self) -> None:
        requests, tokens = Counter[str](), Counter[str]()
        for name, weight in self.held.values():
            requests[name] += 1
            tokens[name] += weight
        own = {name: (requests[name], tokens[name]) for name in requests}
        assert self.table.own() == own
        ids, packed_requests, packed_tokens = self.table.columns()
        published = zip(unpack_counts(packed_requests).tolist(), unpack_counts(packed_tokens).tolist(), strict=True)
        assert dict(zip(unpack_hashes(ids).tolist(), published, strict=True)) == {
            endpoint_hash(name): (count, weight) for name, (count, weight) in own.items()
        }
        for _, rows in self.peers.values():
            for name, (more_requests, more_tokens) in rows.items():
                requests[name] += more_requests
                tokens[name] += more_tokens
        assert self.table.requests.tolist() == [requests[member.id] for member in self.layout.endpoints]
        assert self.table.tokens.tolist() == [tokens[endpoint.id] for endpoint in self.layout.endpoints]
        assert self.table.count == sum(self.table.requests)
        assert self.table.token_count == sum(self.table.tokens)
        dispatched = self.table.requests - self.table.at_sample
        assert dispatched.tolist() == [self.since[endpoint.id] for endpoint in self.layout.endpoints]
        assert sorted(self.table.peers()) == sorted(self.peers)


TestInFlightMachine = InFlightMachine.TestCase
TestInFlightMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
