"""What each tier's login may publish and hear, and nats-server's configuration of these logins.

    python -m shared.bus.accounts --prefix pointsman > deploy/nats/accounts.conf

A tier publishes its own subjects only. All processes of a tier share a login, because nats-server's files can't name
processes that come and go: what one of them says under another's id is refused or reported by who hears it
(`shared.bus.incarnations`, `shared.bus.duplicate_id`).

Three of the server's gaps decide what is here. It doesn't check the configuration of a stream against the login that
creates it, and a stream can publish again what it gets. So only watchers, which are trusted with everything on the bus,
create streams. And it checks the subject of a request, not the one to which the answer goes. So a tier asks only for
streams that it can't write to. With `allow_responses`, a login may publish wherever a message that it gets wants its
answer, and every tier could send itself such a message. So tiers answer to inboxes, which begin with their tier.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from shared.bus.subjects import DEFAULT_PREFIX, READER, TIERS, Subjects, pool_token

ANY_POOL = "*"
OPERATOR = "operator"
USERS = (*TIERS, OPERATOR)
"""A login for each tier, for readers, and for consoles that may have watchers act."""


class Permissions(Struct, frozen=True):
    """What a login may do: subjects with NATS's wildcards."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]


def permissions(subjects: Subjects, pools: Sequence[str] = (ANY_POOL,)) -> Mapping[str, Permissions]:
    """The permissions of each login in an installation. `pools` are tokens; watchers aren't restricted to them. The
    operator is a reader that may also have those watchers act that allow it."""
    facts, frames, leases = subjects.endpoints_bucket, subjects.attributes_bucket, subjects.leases_bucket
    reader = Permissions(
        (
            *(subjects.queries(pool) for pool in pools),
            *(one for bucket in (facts, frames, leases) for one in _api(bucket, "INFO", "MSG.GET")),
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
                _inboxes(subjects, READER),
            ),
            (
                subjects.republished(">"),
                subjects.lease_events,
                *_heard(subjects, "watcher", (ANY_POOL,)),
                subjects.actions(ANY_POOL),
            ),
        ),
        "collector": Permissions(
            (
                *(subjects.frames(pool) for pool in pools),
                *(subjects.members(pool, "collector") for pool in pools),
                _snapshot(facts),
                _inboxes(subjects, READER),
            ),
            (
                *(subjects.republished(f"{pool}.>") for pool in pools),
                *_heard(subjects, "collector", pools),
            ),
        ),
        "picker": Permissions(
            (
                *(subject for pool in pools for subject in _of_pickers(subjects, pool)),
                *(subjects.members(pool, "picker") for pool in pools),
                _snapshot(facts),
                _snapshot(frames),
                _inboxes(subjects, READER),
                _inboxes(subjects, "picker"),
            ),
            (
                *(subject for pool in pools for subject in _of_pickers(subjects, pool)),
                *(subjects.republished(f"{pool}.>") for pool in pools),
                *(subjects.frames(pool) for pool in pools),
                *_heard(subjects, "picker", pools),
            ),
        ),
        READER: reader,
        OPERATOR: Permissions((*reader.publish, *(subjects.actions(pool) for pool in pools)), reader.subscribe),
    }


def _of_pickers(subjects: Subjects, pool: str) -> Iterator[str]:
    """What pickers tell and ask each other."""
    yield subjects.loads(pool)
    yield subjects.prefix_batches(pool)
    yield subjects.prefix_dumps(pool)
    yield subjects.prefix_peers(pool)


def _heard(subjects: Subjects, tier: str, pools: Sequence[str]) -> Iterator[str]:
    """What a process of any tier subscribes to: its tier's heartbeats, queries, and answers."""
    for pool in pools:
        yield subjects.members(pool, tier)
        yield subjects.query(pool, tier)
        yield f"{subjects.query(pool, tier)}.*"
    yield _inboxes(subjects, tier)


def _inboxes(subjects: Subjects, tier: str) -> str:
    """Where a tier gets answers. Readers ask every tier, and pickers each other."""
    return f"{subjects.inbox(tier)}.>"


def _api(bucket: str, *operations: str) -> Iterator[str]:
    for operation in operations:
        yield f"$JS.API.STREAM.{operation}.{Subjects.stream(bucket)}"


def _snapshot(bucket: str) -> str:
    return f"$JS.API.DIRECT.GET.{Subjects.stream(bucket)}"


def configuration(tiers: Mapping[str, Permissions]) -> str:
    """nats-server's configuration of an account with these logins. Passwords come from the environment:
    `WATCHER_PASSWORD` and so on. NATS reads them as values of its configuration: letters and digits that begin with a
    letter."""
    lines = ["accounts {", "  POINTSMAN {", "    jetstream: enabled", "    users: ["]
    for tier, may in tiers.items():
        lines += ["      {", f"        user: {tier}", f"        password: ${tier.upper()}_PASSWORD"]
        lines += ["        permissions {"]
        for what, allowed in (("publish", may.publish), ("subscribe", may.subscribe)):
            lines += [f"          {what}: {{ allow: [", *(f'            "{subject}"' for subject in allowed)]
            lines += ["          ] }"]
        lines += ["        }", "      }"]
    return "\n".join([*lines, "    ]", "  }", "}", ""])


def main(argv: Sequence[str] | None = None) -> None:
    """Print the configuration of an installation."""
    parser = argparse.ArgumentParser(prog="python -m shared.bus.accounts", description="Logins of each tier for NATS.")
    parser.add_argument("--prefix", default=DEFAULT_PREFIX, help="the tiers' --nats-prefix")
    parser.add_argument(
        "--pool", action="append", metavar="NAMESPACE/NAME", help="a pool of the installation; default: any"
    )
    options = parser.parse_args(argv)
    pools = [pool_token(*pool.split("/", 1)) for pool in options.pool or ()]
    print(configuration(permissions(Subjects(options.prefix), pools or (ANY_POOL,))), end="")


if __name__ == "__main__":
    main()
