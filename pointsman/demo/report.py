"""What is said before and after: how to try it by hand, and what came of it all. Plain lines."""

import json

from pointsman.demo.journal import Journal
from pointsman.demo.plan import BASE
from pointsman.demo.snapshot import Snapshot
from pointsman.demo.stats import Buckets, Distribution
from pointsman.demo.tally import Tally
from pointsman.demo.words import count, duration, share
from pointsman.local.stack import LocalStack


def try_it(stack: LocalStack) -> list[str]:
    """The commands with which a user looks around while the demo runs."""
    question = {"model": BASE, "messages": [{"role": "user", "content": "Hi"}]}
    picker = stack.pickers[-1].url
    return [
        "Try it by hand, from another terminal:",
        f"  curl {stack.url}/v1/chat/completions \\",
        "    -H 'content-type: application/json' \\",
        f"    -d '{json.dumps(question, separators=(',', ':'))}'",
        "Why requests went where they went, and a picker's metrics:",
        f"  curl '{picker}/debug/decisions?limit=3'",
        f"  curl {picker}/metrics | grep pointsman_picker_",
    ]


def summary(
    seconds: float, tally: Tally, system: Snapshot, decisions: dict[str, Buckets], journal: Journal
) -> list[str]:
    """What came of `seconds` of load; the last line says whether it was good."""
    lines = [
        f"Summary of {seconds:.0f} s",
        f"  requests      {tally.sent} sent, {tally.right} answered rightly, {tally.failed} failed"
        + (f", {tally.open} dropped without an outcome" if tally.open else ""),
        f"  first token   {_quantiles(tally.first_token)}; whole answers {_quantiles(tally.whole)}",
        f"  prefix cache  held {share(tally.hit_share)} of all prompt tokens",
        f"  Envoy         sent {count(system.server_retries, 'request')} on to another server,"
        f" {count(system.picker_retries, 'pick')} to another picker",
    ]
    if journal.events:
        events = [name if number == 1 else f"{name} {number} times" for name, number in journal.events.items()]
        lines.append(f"  happened      {', '.join(events)}")
    if tally.kills:
        lines.append(f"  kills         cut off {count(tally.cut, 'begun answer')}; the client asked again")
        if tally.unseen:
            lines.append(f"                {tally.unseen} of them while Envoy still held the head")
    if tally.held:
        lines.append(f"  load          {count(tally.held, 'request')} had to wait: too many were open")
    lines += [f"  {name:<13} {_decisions(buckets)}" for name, buckets in decisions.items()]
    answers = sum(tally.served.values())
    served = ", ".join(f"{name} {share(tally.served[name] / answers)}" for name in sorted(tally.served))
    if served:
        lines.append(f"  answers by    {served}")
    lines += [f"  failed        {number} × {reason}" for reason, number in tally.reasons.most_common()]
    lines += [f"  not right     {text}" for text in journal.bad]
    return [*lines, verdict(tally, journal)]


def is_good(tally: Tally, journal: Journal) -> bool:
    """Whether every request got its right answer, and everything else was as it should be."""
    return not tally.failed and not tally.open and not journal.bad


def verdict(tally: Tally, journal: Journal) -> str:
    """The last line."""
    if tally.failed or tally.open:
        return f"{count(tally.failed + tally.open, 'request')} FAILED."
    if journal.bad:
        return "No request failed, but not everything was as it should be."
    return "No request failed." if tally.sent else "No request was sent."


def _decisions(buckets: Buckets) -> str:
    return f"{count(int(buckets.count), 'decision')}, {_quantiles(buckets)}"


def _quantiles(times: Distribution | Buckets) -> str:
    return f"p50 {duration(times.quantile(0.5))}, p99 {duration(times.quantile(0.99))}"
