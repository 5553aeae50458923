"""A picker of a simulation: the decision code, the view and the sharing of a real one, without its process.

Messages are encoded and decoded as on the bus.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

import numpy as np

from pointsman.lab.workload import Arrival
from services.picker.bus.pace import Pace
from services.picker.pipeline import build
from services.picker.request import Content, Headers, Refusal, Request
from services.picker.scheduling.interfaces import Placement
from services.picker.scheduling.producers.approx_prefix import ApproxPrefixProducer
from services.picker.state.inflight import Charge
from services.picker.state.prefix_announcements import Announcements, parts
from services.picker.state.prefix_peers import PrefixPeers
from services.picker.state.view import View
from shared.bus.codec import decode, encode
from shared.bus.messages import Frame, Load, PrefixBatch
from shared.config import LoadedConfig
from shared.model import Endpoint

START = 1_000.0
"""The pickers' clocks at the beginning."""
HASHING = "lab"

Send: TypeAlias = Callable[["LabPicker", bytes], None]
"""Brings a message to all other pickers."""


class Pick:
    """A request that a picker has placed on a server, and its later events."""

    __slots__ = ("_charge", "_placements", "server")

    def __init__(self, server: str, charge: Charge, placements: tuple[Placement, ...]) -> None:
        self.server = server
        self._charge, self._placements = charge, placements

    def began(self) -> None:
        """The first token has come."""
        self._charge.response_began()

    def ended(self) -> None:
        self._charge.release()

    def failed(self) -> None:
        """The server has refused the request."""
        for placement in self._placements:
            placement(None)
        self._charge.release()


class LabPicker:
    """One picker. `now` is seconds from the beginning, everywhere."""

    def __init__(
        self, number: int, config: LoadedConfig, endpoints: list[Endpoint], seed: int, interval: float
    ) -> None:
        self.number, self.name = number, f"picker-{number}"
        self.view = View()
        self.view.reset({f"lab.endpoint.{endpoint.id}": endpoint for endpoint in endpoints})
        pipeline = build(config, np.random.default_rng([seed, number]), lambda: 0.0)
        self._director = pipeline.director
        producers = pipeline.director.scheduler.producers
        self._maker = next((producer for producer in producers if isinstance(producer, ApproxPrefixProducer)), None)
        self._announcements = Announcements(self.name, number + 1)
        self._peers = PrefixPeers(self.view.prefixes)
        self._peers.complete()
        self._loads = 0
        self._published_at = 0.0
        self.pace = Pace(interval)
        self.picks = self.load_bytes = self.prefix_bytes = 0

    def share_prefixes(self) -> None:
        """Share placements with the other pickers."""
        if self._maker is not None:
            index = self.view.prefixes
            index.capacity_of, index.changes = partial(self._maker.capacity, self.view), []

    def pick(self, id: str, arrival: Arrival, now: float) -> Pick | Refusal:
        """Decide where a request goes."""
        content = Content(api="completions", model=arrival.model, takes_model=True, stream=True, prompt=arrival.prompt)
        request = Request(id=id, headers=Headers(), content=content, body_size=len(arrival.prompt))
        decision = self._director.decide(request, self.view, START + now)
        if isinstance(decision.outcome, Refusal):
            return decision.outcome
        self.picks += 1
        endpoints, in_flight = decision.layout.endpoints, self.view.in_flight
        server = endpoints[decision.picked[0]].id
        others = [(endpoints[role.row].id, role.tokens, role.until_response) for role in decision.roles.values()]
        charge = in_flight.charge_all(server, decision.tokens, others)
        return Pick(server, charge, decision.progress.placements)

    # What it publishes

    def publish_load(self, now: float, heartbeat: float, send: Send) -> bool:
        """The load in flight, if it has changed or `heartbeat` seconds have passed. Whether it was published."""
        in_flight = self.view.in_flight
        published = in_flight.changed or now - self._published_at >= heartbeat
        if published:
            self._published_at = now
            self._loads += 1
            ids, requests, tokens = in_flight.columns()
            in_flight.published()
            message = Load(
                sender=self.name,
                sent=START + now,
                sequence=self._loads,
                run=self.number + 1,
                ids=ids,
                requests=requests,
                tokens=tokens,
            )
            payload = encode(message)
            self.load_bytes += len(payload)
            send(self, payload)
        return published

    def publish_prefixes(self, send: Send) -> bool:
        """What has been placed and withdrawn since the last time. Whether there was anything."""
        index = self.view.prefixes
        changes = index.changes
        if changes:
            index.changes = []
            for part in parts(changes):
                payload = encode(self._announcements.batch(HASHING, complete=True, changes=part))
                self.prefix_bytes += len(payload)
                send(self, payload)
        return bool(changes)

    # What it receives

    def receive_load(self, payload: bytes, now: float) -> None:
        self.view.apply_load(decode(Load, payload), START + now)

    def receive_prefixes(self, payload: bytes, now: float) -> None:
        _ = self.view.layout
        self._peers.receive(decode(PrefixBatch, payload), START + now)

    def receive_frame(self, frame: Frame, now: float) -> None:
        self.view.apply_frame(frame, START + now, 0.0)

    def maintain(self, now: float) -> None:
        """What the process does from time to time."""
        self.view.in_flight.expire(START + now)
        self.view.prefixes.sweep()
        self._peers.missing(START + now)

    def __repr__(self) -> str:
        return f"<LabPicker {self.name}: {self.picks} picks>"
