"""Counts of the API's own HTTP requests, as vLLM's page has them at its end."""

from services.simulator.exposition import braces, head, number
from services.simulator.histogram import Histogram

_FINE = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0),
    60.0,
)
_COARSE = (0.1, 0.5, 1.0)


class HttpStats:
    """Requests by handler, method and class of status; sizes in bytes, times in seconds."""

    def __init__(self, started: float) -> None:
        self.revision = 0
        self._started = number(started)
        self._requests: dict[tuple[str, str, str], int] = {}
        self._sizes: dict[tuple[str, str], list[int]] = {}
        self._durations: dict[tuple[str, str], Histogram] = {}
        self._duration = Histogram(_FINE)

    def observe(self, handler: str, method: str, status: int, received: int, sent: int, seconds: float) -> None:
        """A request has been answered, or its client has left."""
        self.revision += 1
        key = (handler, method, f"{status // 100}xx")
        self._requests[key] = self._requests.get(key, 0) + 1
        for kind, size in (("request", received), ("response", sent)):
            totals = self._sizes.setdefault((kind, handler), [0, 0])
            totals[0] += 1
            totals[1] += size
        self._duration.observe(seconds)
        self._durations.setdefault((handler, method), Histogram(_COARSE)).observe(seconds)

    def render(self) -> str:
        """The families, in vLLM's order."""
        counts = [
            ({"handler": handler, "method": method, "status": status}, count)
            for (handler, method, status), count in self._requests.items()
        ]
        name, help = "http_requests", "Total number of requests by method, status and handler."
        lines = [head(f"{name}_total", "counter", help)]
        lines += [f"{name}_total{braces(labels)} {number(count)}\n" for labels, count in counts]
        lines += self._created(name, help, [labels for labels, _ in counts])
        lines += self._summary("request", "Content length of incoming requests by handler.")
        lines += self._summary("response", "Content length of outgoing responses by handler.")
        name, help = "http_request_duration_highr_seconds", "Latency with many buckets but no API specific labels."
        lines += [head(name, "histogram", help), *_buckets(name, {}, self._duration)]
        lines += self._created(name, help, [{}])
        name, help = "http_request_duration_seconds", "Latency with only few buckets by handler."
        lines.append(head(name, "histogram", help))
        labelled = [({"handler": one, "method": method}, seen) for (one, method), seen in self._durations.items()]
        for labels, histogram in labelled:
            lines += _buckets(name, labels, histogram)
        lines += self._created(name, help, [labels for labels, _ in labelled])
        return "".join(lines)

    def _summary(self, kind: str, help: str) -> list[str]:
        name = f"http_{kind}_size_bytes"
        totals = [({"handler": handler}, both) for (one, handler), both in self._sizes.items() if one == kind]
        lines = [head(name, "summary", help)]
        for labels, (count, size) in totals:
            lines.append(f"{name}_count{braces(labels)} {number(count)}\n")
            lines.append(f"{name}_sum{braces(labels)} {number(size)}\n")
        return lines + self._created(name, help, [labels for labels, _ in totals])

    def _created(self, name: str, help: str, series: list[dict[str, str]]) -> list[str]:
        lines = [f"{name}_created{braces(labels)} {self._started}\n" for labels in series]
        return [head(f"{name}_created", "gauge", help), *lines]

    def __repr__(self) -> str:
        return f"<HttpStats {sum(self._requests.values())} requests>"


def _buckets(name: str, labels: dict[str, str], histogram: Histogram) -> list[str]:
    lines = []
    below = 0
    for bound, count in zip([*map(number, histogram.bounds), "+Inf"], histogram.counts, strict=True):
        below += count
        lines.append(f"{name}_bucket{braces({**labels, 'le': bound})} {number(below)}\n")
    lines.append(f"{name}_count{braces(labels)} {number(histogram.count)}\n")
    lines.append(f"{name}_sum{braces(labels)} {number(histogram.sum)}\n")
    return lines
