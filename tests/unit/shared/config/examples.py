"""What an example document is, and what it can come to."""

from collections.abc import Mapping

from msgspec import Struct

KIND = "kind: EndpointPickerConfig\n"
LLM_D = f"apiVersion: llm-d.ai/v1alpha1\n{KIND}"
GIE = f"apiVersion: inference.networking.x-k8s.io/v1alpha1\n{KIND}"
GROUP = "apiVersion: inference.networking.x-k8s.io/v1alpha1 is deprecated; write llm-d.ai/v1alpha1"
PARSER = "parser: deprecated; write requestHandler.parsers"
DETECTOR = "saturationDetector: deprecated; write flowControl.saturationDetector"
PARSERS = ("openai-parser", "anthropic-parser", "vllmhttp-parser", "passthrough-parser")
SCRAPED = (("metrics-data-source", ("core-metrics-extractor",)),)


def no_gate(name: str, position: int = 0) -> str:
    return f"featureGates[{position}]: {name} has no effect any more; leave it out"


def moved(plugin: int, *parameters: str) -> tuple[str, ...]:
    """Warnings of cache parameters on the scorer."""
    at = f"plugins[{plugin}].parameters"
    return tuple(f"{at}: {one} is deprecated here; write it on approx-prefix-cache-producer" for one in parameters)


class Example(Struct, frozen=True):
    """A document, and what it comes to."""

    text: str
    profiles: Mapping[str, str]
    """Each profile's members in order, with the weight where it isn't 1; what was added is among them."""
    warnings: tuple[str, ...] = ()
    handler: str = "single-profile-handler"
    sources: tuple[tuple[str, tuple[str, ...]], ...] = SCRAPED
    parsers: tuple[str, ...] = PARSERS
    detector: str = "utilization-detector"
    parameters: Mapping[str, Mapping[str, object]] = {}
    """Of the plugins that are installed: what the document, or a default, made of them."""
