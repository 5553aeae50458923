"""What is the matter with an endpoint, in sentences, from what the members of all tiers know of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FEW_PICKS = 0.25
"""A share of an even part of the decisions below which an endpoint is passed over."""
MIN_DECISIONS = 20
"""Decisions from which on that says something."""
SLOW = 2.0
"""A multiple of the others' time from which on an endpoint is slow."""
MIN_REQUESTS = 5
"""Requests here and elsewhere from which on that says something."""

View = dict[str, Any]


def sentences(views: Mapping[str, Sequence[View]]) -> list[str]:
    """`views` has by tier what each member knows of the endpoint. The first line names it; problems follow."""
    known = [view for found in views.values() for view in found if view.get("known")]
    if not known:
        return []
    fact = known[0]["fact"]
    lines = [f"{fact['id']} at {fact['address']}:{fact['port']}"]
    problems = [*_watchers(views.get("watcher", ())), *_collectors(views.get("collector", ()))]
    pickers = [view for view in views.get("picker", ()) if view.get("known")]
    missing = [view["member"] for view in views.get("picker", ()) if not view.get("known")]
    if missing:
        problems.append(f"not known to picker {', '.join(missing)}")
    members_by_text: dict[str, list[str]] = {}
    for view in pickers:
        for text in _picker(view):
            members_by_text.setdefault(text, []).append(view["member"])
    problems += [f"picker {', '.join(members)}: {text}" for text, members in members_by_text.items()]
    lines += [f"  {problem}" for problem in problems] or ["  nothing is wrong with it"]
    return [*lines, *(f"  picker {view['member']}: {_normal(view)}" for view in pickers if "recently" in view)]


def _watchers(views: Sequence[View]) -> Iterator[str]:
    for view in views:
        if view.get("known") and not view.get("in_sources", True):
            yield f"watcher {view['member']} doesn't find it in its sources"
        elif view.get("known") and not view.get("as_published", True):
            yield f"watcher {view['member']} finds it otherwise in its sources than it is published"


def _collectors(views: Sequence[View]) -> Iterator[str]:
    assigned = [view for view in views if view.get("known") and view.get("assigned")]
    if not assigned:
        yield "no collector scrapes it"
    for view in assigned:
        for source in view["sources"]:
            if not source["up"]:
                age = source["age"]
                last = "no page ever" if age is None else f"the last page {age:.0f} s ago"
                reason = source["error"] or source["last_error"] or "not scraped yet"
                yield f"collector {view['member']} can't scrape {source['source']} ({source['url']}), {last}: {reason}"


def _picker(view: View) -> Iterator[str]:
    if "recently" not in view:
        yield "it isn't in the layout yet"
        return
    if view["draining"]:
        yield "it is draining, and gets no new requests"
    if view["unhealthy"]:
        yield f"it ranks last: {view['unhealthy']}"
    attributes = view["attributes"].items()
    stale = {name: attribute for name, attribute in attributes if attribute["read_by"] and not attribute["fresh"]}
    if stale:
        oldest = max(attribute["age"] for attribute in stale.values())
        names = ", ".join(name.partition("/")[0] for name in stale)
        yield f"metrics {oldest:.0f} s old ({names}), {_policy(view['stale_policy'])}"
    if view["missing"]:
        names = ", ".join(name.partition("/")[0] for name in view["missing"])
        yield f"metrics that it never reported ({names}), {_policy(view['stale_policy'])}"
    recent = view["recently"]
    candidate = recent["candidate"]
    if candidate >= MIN_DECISIONS and recent["chosen"] < FEW_PICKS * candidate / max(view["endpoints"], 1):
        why = [f"{plugin} removed it {count} times" for plugin, count in recent["filtered"].items()]
        why += [f"{plugin} put it behind {count} times" for plugin, count in recent["behind"].items()]
        yield f"chosen {recent['chosen']} times of the last {candidate}: {', '.join(why)}"
    yield from _slow(view)


def _slow(view: View) -> Iterator[str]:
    durations = view.get("durations")  # pickers of an earlier version don't report them
    if durations is None or min(durations["requests"], durations["requests_elsewhere"]) < MIN_REQUESTS:
        return
    count, here, elsewhere = durations["requests"], durations["seconds"], durations["seconds_elsewhere"]
    if here > SLOW * elsewhere:
        yield f"slow: its last {count} requests take {here:.1f} s in the median, others {elsewhere:.1f} s"


def _policy(policy: str) -> str:
    return {
        "saturated": "load scores 0",
        "ignore": "scored with the mean of the others",
        "lastKnown": "scored by what was known last",
    }.get(policy, f"policy {policy}")


def _normal(view: View) -> str:
    recent = view["recently"]
    return (
        f"{view['requests']} requests in flight, {view['own_requests']} of them its own; {view['prefix_blocks']} "
        f"prefix blocks; chosen {recent['chosen']} times in the last {recent['candidate']} decisions that could"
    )
