"""A picker as a process of its own."""

from prometheus_client.parser import text_string_to_metric_families

from tests.protocol.process import TierProcess

PORTS = ("--grpc-host=127.0.0.1", "--grpc-port=0", "--grpc-health-port=0")
"""Free ones, which `state` shows."""


class Picker(TierProcess):
    tier = "picker"

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of the samples with these labels."""
        families = text_string_to_metric_families((await self.get("/metrics")).text)
        samples = [sample for family in families for sample in family.samples if sample.name == name]
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())
