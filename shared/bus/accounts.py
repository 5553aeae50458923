"""What each tier's login may publish and receive, and nats-server's configuration of these logins.

    python -m shared.bus.accounts --prefix pointsman > deploy/nats/accounts.conf

A tier publishes its own subjects only. All processes of a tier share a login, because nats-server's files can't name
processes that come and go: what one of them says under another's id is refused or reported by its readers
(`shared.bus.incarnations`, `shared.bus.duplicate_id`).

Each login has an account of its own, and `exports` lists what passes between accounts. For nats-server checks the
subject of a request, not the one to which the answer goes: within one account, who may ask for a snapshot could have
its messages delivered as facts, as the lease, or as requests to JetStream. Between accounts, a request is a service
import. The server replaces its reply subject, and delivers the answers in the asker's account only. There are neither
streams nor a lease there, and no account imports a service whose requests those answers could be: collectors alone
import frames, which they publish anyhow, and operators alone import actions.

Two more of the server's gaps decide what is here. It doesn't check the configuration of a stream against the login
that creates it, and a stream can publish again what it gets. So only watchers, which are trusted with everything on the
bus, create streams. And with `allow_responses`, a login may publish wherever a message that it gets wants its answer,
and every tier could send itself such a message. So tiers answer to the server's own reply subjects, and pickers also
where pickers expect answers of each other, and no others.
"""

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct

from shared.bus.actions import TIMEOUT
from shared.bus.query_messages import MAX_WAIT
from shared.bus.reply_subjects import SERVICE_REPLIES
from shared.bus.subjects import DEFAULT_PREFIX, READER, TIERS, Subjects, pool_token

ANY_POOL = "*"
OPERATOR = "operator"
USERS = (*TIERS, OPERATOR)
"""A login for each tier, for readers, and for consoles that may have watchers act."""
ACCOUNT = "POINTSMAN"
"""That of the watchers, with all streams."""
API_ANSWERS = 5.0
"""Seconds after which the server forgets where an answer of JetStream is to go, unless it still comes."""


class Permissions(Struct, frozen=True):
    """What a login may do: subjects with NATS's wildcards."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


class Export(Struct, frozen=True):
    """What passes from or to the account of the tier `owner`: the tiers `importers` receive its messages or, with
    `answers`, send it requests."""

    owner: str
    subject: str
    importers: tuple[str, ...]
    answers: str = ""
    """`single` or `stream`: whether one message answers, or several do."""
    threshold: float = 0.0
    """Seconds without an answer after which the server forgets the request."""


def permissions(subjects: Subjects, pools: Sequence[str] = (ANY_POOL,)) -> Mapping[str, Permissions]:
    """The permissions of each login in an installation. `pools` are tokens; watchers aren't restricted to them. The
    operator is a reader that may also have those watchers act that allow it."""
    facts, frames, leases = subjects.endpoints_bucket, subjects.attributes_bucket, subjects.leases_bucket
    reader = Permissions(
        (
            *(subjects.queries(pool) for pool in pools),
            *(subject for bucket in (facts, frames, leases) for subject in _api(bucket, "INFO", "MSG.GET")),
            *map(_snapshot, (facts, frames, leases)),
        ),
        (
            f"{subjects.prefix}.>",
            *(subjects.frames(pool) for pool in pools),
            _inboxes(subjects, READER),
        ),
    )
    return {
        "watcher": Permissions(
            (
                subjects.fact(">"),
                subjects.leases,
                subjects.frames(ANY_POOL),
                *_api(facts, "INFO", "CREATE", "UPDATE", "PURGE", "MSG.GET", "MSG.DELETE"),
                *_api(leases, "INFO", "CREATE", "UPDATE", "MSG.GET", "MSG.DELETE"),
                *_api(frames, "INFO", "CREATE", "UPDATE"),
                _snapshot(facts),
                subjects.lease_events,
                subjects.members(ANY_POOL, "watcher"),
                f"{SERVICE_REPLIES}>",
            ),
            (
                subjects.republished(">"),
                subjects.lease_events,
                *_received(subjects, "watcher", (ANY_POOL,)),
                subjects.actions(ANY_POOL),
            ),
        ),
        "collector": Permissions(
            (
                *(subjects.frames(pool) for pool in pools),
                *(subjects.members(pool, "collector") for pool in pools),
                _snapshot(facts),
                f"{SERVICE_REPLIES}>",
            ),
            (
                *(subjects.republished(f"{pool}.>") for pool in pools),
                *_received(subjects, "collector", pools),
            ),
        ),
        "picker": Permissions(
            (
                *(subject for pool in pools for subject in _of_pickers(subjects, pool)),
                *(subjects.members(pool, "picker") for pool in pools),
                _snapshot(facts),
                _snapshot(frames),
                f"{SERVICE_REPLIES}>",
                f"{subjects.peer_inbox('picker')}.>",
            ),
            (
                *(subject for pool in pools for subject in _of_pickers(subjects, pool)),
                *(subjects.republished(f"{pool}.>") for pool in pools),
                *(subjects.frames(pool) for pool in pools),
                *_received(subjects, "picker", pools),
            ),
        ),
        READER: reader,
        OPERATOR: Permissions((*reader.publish, *(subjects.actions(pool) for pool in pools)), reader.subscribe),
    }


def exports(subjects: Subjects, pools: Sequence[str] = (ANY_POOL,)) -> Iterator[Export]:
    """What passes between the tiers' accounts; arguments as of `permissions`."""
    readers = (READER, OPERATOR)
    all_but_watchers = ("collector", "picker", *readers)
    facts, frames, leases = subjects.endpoints_bucket, subjects.attributes_bucket, subjects.leases_bucket
    for bucket, importers in ((facts, all_but_watchers), (frames, ("picker", *readers)), (leases, readers)):
        yield Export("watcher", _snapshot(bucket), importers, "stream", API_ANSWERS)
    for bucket in (facts, frames, leases):
        for subject in _api(bucket, "INFO", "MSG.GET"):
            yield Export("watcher", subject, readers, "single", API_ANSWERS)
    # Without this import, the server would import the whole API from its system account, which answers that the account
    # has no JetStream.
    yield Export("watcher", "$JS.API.INFO", readers, "single", API_ANSWERS)
    yield Export("watcher", subjects.lease_events, readers)
    for pool in pools:
        yield Export("watcher", subjects.republished(f"{pool}.>"), all_but_watchers)
        yield Export("watcher", subjects.frames(pool), ("collector",), "single", API_ANSWERS)
        # What has come by a service import isn't exported again as a stream, so frames come straight from their sender.
        for tier in ("watcher", "collector"):
            yield Export(tier, subjects.frames(pool), ("picker", *readers))
        for subject in (subjects.loads(pool), subjects.prefix_batches(pool)):
            yield Export("picker", subject, readers)
        for tier in TIERS[:-1]:
            yield Export(tier, subjects.members(pool, tier), readers)
            for query in (subjects.query(pool, tier), f"{subjects.query(pool, tier)}.*"):
                yield Export(tier, query, readers, "stream", MAX_WAIT + API_ANSWERS)
        yield Export("watcher", subjects.actions(pool), (OPERATOR,), "single", TIMEOUT + API_ANSWERS)


def _of_pickers(subjects: Subjects, pool: str) -> Iterator[str]:
    """Messages and requests between pickers."""
    yield subjects.loads(pool)
    yield subjects.prefix_batches(pool)
    yield subjects.prefix_dumps(pool)
    yield subjects.prefix_peers(pool)


def _received(subjects: Subjects, tier: str, pools: Sequence[str]) -> Iterator[str]:
    """What a process of any tier subscribes to: its tier's heartbeats, queries, and answers."""
    for pool in pools:
        yield subjects.members(pool, tier)
        yield subjects.query(pool, tier)
        yield f"{subjects.query(pool, tier)}.*"
    yield _inboxes(subjects, tier)


def _inboxes(subjects: Subjects, tier: str) -> str:
    """Where a tier gets answers."""
    return f"{subjects.inbox(tier)}.>"


def _api(bucket: str, *operations: str) -> Iterator[str]:
    for operation in operations:
        yield f"$JS.API.STREAM.{operation}.{Subjects.stream(bucket)}"


def _snapshot(bucket: str) -> str:
    return f"$JS.API.DIRECT.GET.{Subjects.stream(bucket)}"


def configuration(tiers: Mapping[str, Permissions], passages: Iterable[Export]) -> str:
    """nats-server's configuration of an account for each tier, with a login named as the tier. Passwords come from the
    environment: `WATCHER_PASSWORD` and so on. NATS reads them as values of its configuration: letters and digits that
    begin with a letter."""
    passing = list(passages)
    lines = ["accounts {"]
    for tier, may in tiers.items():
        lines.append(f"  {_account(tier)} {{")
        if tier == "watcher":
            lines.append("    jetstream: enabled")
        for what, entries in (
            ("exports", [_exported(export) for export in passing if export.owner == tier]),
            ("imports", [_imported(export) for export in passing if tier in export.importers]),
        ):
            if entries:
                lines += [f"    {what}: [", *(f"      {entry}" for entry in entries), "    ]"]
        lines += ["    users: [{", f"      user: {tier}", f"      password: ${tier.upper()}_PASSWORD"]
        lines += ["      permissions {"]
        for what, allowed in (("publish", may.publish), ("subscribe", may.subscribe)):
            lines += [f"        {what}: {{ allow: [", *(f'          "{subject}"' for subject in allowed)]
            lines += ["        ] }"]
        lines += ["      }", "    }]", "  }"]
    return "\n".join([*lines, "}", ""])


def _account(tier: str) -> str:
    return ACCOUNT if tier == "watcher" else f"{ACCOUNT}_{tier.upper()}"


def _exported(export: Export) -> str:
    accounts = ", ".join(map(_account, export.importers))
    if not export.answers:
        return f'{{ stream: "{export.subject}", accounts: [{accounts}] }}'
    response = f'response_type: {export.answers}, threshold: "{export.threshold:g}s"'
    return f'{{ service: "{export.subject}", {response}, accounts: [{accounts}] }}'


def _imported(export: Export) -> str:
    kind = "service" if export.answers else "stream"
    return f'{{ {kind}: {{ account: {_account(export.owner)}, subject: "{export.subject}" }} }}'


def installation(subjects: Subjects, pools: Sequence[str] = (ANY_POOL,)) -> str:
    """The configuration of an installation; arguments as of `permissions`."""
    return configuration(permissions(subjects, pools), exports(subjects, pools))


def main(argv: Sequence[str] | None = None) -> None:
    """Print the configuration of an installation."""
    parser = argparse.ArgumentParser(prog="python -m shared.bus.accounts", description="Logins of each tier for NATS.")
    parser.add_argument("--prefix", default=DEFAULT_PREFIX, help="the tiers' --nats-prefix")
    parser.add_argument(
        "--pool", action="append", metavar="NAMESPACE/NAME", help="a pool of the installation; default: any"
    )
    options = parser.parse_args(argv)
    pools = [pool_token(*pool.split("/", 1)) for pool in options.pool or ()]
    print(installation(Subjects(options.prefix), pools or (ANY_POOL,)), end="")


if __name__ == "__main__":
    main()
