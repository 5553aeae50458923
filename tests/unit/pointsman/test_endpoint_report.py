"""What is the matter with an endpoint, from what members of all tiers know of it."""

from typing import Any

import pytest

from pointsman.endpoint_report import sentences

FACT = {"id": "default/gpu-2", "address": "10.0.0.2", "port": 8000}
RECENTLY = {"decisions": 40, "refused": 0, "candidate": 40, "chosen": 10, "filtered": {}, "behind": {}}
SOURCE = {"source": "metrics", "url": "http://10.0.0.2:8000", "up": True, "age": 0.1, "error": None, "last_error": None}


def watcher(**fields: Any) -> dict[str, Any]:
    return {"member": "w", "known": True, "fact": FACT, "in_sources": True, "as_published": True, **fields}


def collector(**source: Any) -> dict[str, Any]:
    return {"member": "c", "known": True, "fact": FACT, "assigned": True, "sources": [{**SOURCE, **source}]}


def picker(**fields: Any) -> dict[str, Any]:
    normal: dict[str, Any] = {
        "unhealthy": None,
        "draining": False,
        "attributes": {"WaitingQueueSize/core": {"value": 0.0, "age": 0.1, "fresh": True, "read_by": ["queue-scorer"]}},
        "missing": [],
        "stale_policy": "saturated",
        "requests": 3,
        "own_requests": 1,
        "prefix_blocks": 7,
        "endpoints": 4,
        "recently": RECENTLY,
    }
    return {"member": "p", "known": True, "fact": FACT, **normal, **fields}


def durations(requests: int, seconds: float, requests_elsewhere: int, elsewhere: float | None) -> dict[str, Any]:
    names = "requests", "seconds", "requests_elsewhere", "seconds_elsewhere"
    return dict(zip(names, (requests, seconds, requests_elsewhere, elsewhere), strict=True))


NORMAL = (
    "  picker p: 3 requests in flight, 1 of them its own; 7 prefix blocks; "
    "chosen 10 times in the last 40 decisions that could"
)
STALE = {"WaitingQueueSize/core": {"value": 0.0, "age": 60.2, "fresh": False, "read_by": ["queue-scorer"]}}


@pytest.mark.parametrize(
    ("views", "expected"),
    [
        ({}, "nothing is wrong with it"),
        ({"watcher": watcher(in_sources=False)}, "watcher w doesn't find it in its sources"),
        ({"watcher": watcher(as_published=False)}, "watcher w finds it otherwise in its sources than it is published"),
        ({"collector": {"member": "c", "known": True, "fact": FACT, "assigned": False}}, "no collector scrapes it"),
        (
            {"collector": collector(up=False, age=60.0, error="refused")},
            "collector c can't scrape metrics (http://10.0.0.2:8000), the last page 60 s ago: refused",
        ),
        ({"picker": picker(draining=True)}, "picker p: it is draining, and gets no new requests"),
        ({"picker": picker(unhealthy="down")}, "picker p: it ranks last: down"),
        ({"picker": picker(attributes=STALE)}, "picker p: metrics 60 s old (WaitingQueueSize), load scores 0"),
        (
            {"picker": picker(missing=["KVCacheUsage/core"], stale_policy="ignore")},
            "picker p: metrics that it never reported (KVCacheUsage), scored with the mean of the others",
        ),
        (
            {
                "picker": picker(
                    recently={**RECENTLY, "chosen": 1, "filtered": {"f": 9}, "behind": {"queue-scorer": 30}}
                )
            },
            "picker p: chosen 1 times of the last 40: f removed it 9 times, queue-scorer put it behind 30 times",
        ),
        (
            {"picker": picker(durations=durations(5, 48.84, 20, 0.73))},
            "picker p: slow: its last 5 requests take 48.8 s in the median, others 0.7 s",
        ),
        ({"picker": picker(durations=durations(5, 2.0, 5, 1.0))}, "nothing is wrong with it"),
        ({"picker": picker(durations=durations(4, 48.84, 20, 0.73))}, "nothing is wrong with it"),
        ({"picker": picker(durations=durations(20, 48.84, 4, 0.73))}, "nothing is wrong with it"),
        ({"picker": picker(durations=durations(20, 48.84, 0, None))}, "nothing is wrong with it"),
        ({"picker": {"member": "p", "known": True, "fact": FACT}}, "picker p: it isn't in the layout yet"),
        ({"picker": {"member": "p", "known": False}}, "not known to picker p"),
    ],
)
def test_the_matter_with_an_endpoint_is_told(views: dict[str, Any], expected: str) -> None:
    found = {"watcher": watcher(), "collector": collector(), "picker": picker(), **views}
    lines = sentences({tier: [view] for tier, view in found.items()})
    assert lines[:2] == ["default/gpu-2 at 10.0.0.2:8000", f"  {expected}"]
    assert ("recently" in found["picker"]) is (len(lines) == 3)


def test_an_endpoint_that_is_well_is_told_with_how_it_fares() -> None:
    lines = sentences({"watcher": [watcher()], "collector": [collector()], "picker": [picker()]})
    assert lines[2] == NORMAL
    assert sentences({"picker": [{"member": "p", "known": False}]}) == []
