"""`topology-extractor`: where an endpoint stands, from its labels: host, rack, zone, region."""

from typing import Annotated, ClassVar

from msgspec import Meta, Struct
from msgspec.structs import asdict

from shared.attributes import ALWAYS, AttributeKey, AttributeMap
from shared.datalayer.endpoints import EndpointEvent, EndpointExtractor
from shared.datalayer.events import Change
from shared.plugin import Tier

Label = Annotated[str, Meta(min_length=1, max_length=317)]
"""A label's name: a prefix of at most 253 characters, a slash, a name of at most 63 (Kubernetes)."""


class Topology(Struct, frozen=True, omit_defaults=True):
    """Where an endpoint stands. None is a part that isn't known: two unknown zones aren't the same zone."""

    hostname: str | None = None
    rack: str | None = None
    zone: str | None = None
    region: str | None = None


TOPOLOGY: AttributeKey[Topology] = AttributeKey("Topology", "topology-extractor", Topology)


class TopologyExtractorParameters(Struct, frozen=True, rename="camel"):
    """Which label has which part."""

    hostname: Label = "kubernetes.io/hostname"
    rack: Label = "topology.kubernetes.io/rack"
    zone: Label = "topology.kubernetes.io/zone"
    region: Label = "topology.kubernetes.io/region"


class TopologyExtractor(EndpointExtractor):
    """Labels into `Topology`. An endpoint without any of them has none."""

    TYPE = "topology-extractor"
    TIER = Tier.PICKER
    Parameters = TopologyExtractorParameters
    PRODUCES: ClassVar[tuple[AttributeKey[Topology], ...]] = (TOPOLOGY,)
    parameters: TopologyExtractorParameters

    def on_endpoint(self, event: EndpointEvent, attributes: AttributeMap) -> None:
        if event.change is Change.DELETED:
            return
        labels = event.endpoint.labels
        topology = Topology(**{part: labels.get(name) or None for part, name in asdict(self.parameters).items()})
        if topology == Topology():
            attributes.drop(TOPOLOGY)
        else:
            attributes.put(TOPOLOGY, topology, ALWAYS)
