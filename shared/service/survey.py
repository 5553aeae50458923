"""Asks all members of a pool how they are, and judges what they say together."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from shared.bus import jetstream
from shared.bus.codec import SHOWN, decode
from shared.bus.connection import Bus
from shared.bus.errors import BusError, JetStreamError, Malformed
from shared.bus.messages import Holder
from shared.bus.query_client import Answer, query_members
from shared.bus.query_messages import StatusQuery
from shared.bus.subjects import Subjects, split_pool
from shared.service.status import LoadStatus, MemberStatus, PeerLoad, PrefixOriginStatus, PrefixStatus
from shared.tasks import in_turns

T = TypeVar("T")

TIERS = ("watcher", "collector", "picker")
LEASE = "watcher"
"""The lease's name: all watchers of an installation share it."""
SILENT = 3.0
"""Seconds without the leading watcher's word after which a copy is out of touch: it comes every second."""
LASTING = 3.0
"""Seconds after which a difference isn't only a message that is on its way."""
PAUSE = 1.0
"""Seconds of a pause of an event loop that are worth a note: peers take a member for dead after 1.5 s."""
NAMED = 5
"""Names that a problem lists at most."""
GROUPS = 20
"""Different values of members that a problem lists at most."""
MAX_TEXTS, MAX_TEXT = 200, 4096
"""Problems, and notes, of a survey; characters of each."""
MAX_OF_MEMBER = 50
"""Reasons, notes, differing parts, named endpoints, configurations, warnings and tiers of a member that count, each."""
MAX_SEEN = 10_000
"""Other members that all of them see; their configurations. Each member counts with as many as the others."""

Texts: TypeAlias = Iterator[str | None]
"""None comes after a part of the work that found nothing: others may have their turn."""


class Failed(Struct, frozen=True):
    """A member whose answer can't be used."""

    tier: str
    id: str
    error: str


class Survey(Struct, frozen=True, kw_only=True):
    """What the members of a pool say, and what is wrong."""

    pool: str
    """`namespace/name`."""
    at: float
    """Unix seconds."""
    leader: str
    """The id of the watcher that holds the lease; empty if nobody does, or it can't be read."""
    members: tuple[MemberStatus, ...]
    """By tier and id."""
    failed: tuple[Failed, ...] = ()
    problems: tuple[str, ...] = ()
    """What is wrong, most important first."""
    notes: tuple[str, ...] = ()
    """What is worth to know, and may be in order."""


async def survey(bus: Bus, subjects: Subjects, pool: str, *, timeout: float = 1.0) -> Survey:
    """The state of a pool (a token); members that don't answer within `timeout` seconds are missing. Raises
    NotConnected."""
    asked = (query_members(bus, subjects, pool, tier, StatusQuery(), timeout=timeout) for tier in TIERS)
    (leader, unknown), answers = await asyncio.gather(_leader(bus, subjects), asyncio.gather(*asked))
    limit = bus.limits.max_senders
    unread = deque(answer for found in answers for answer in found[:limit])
    ignored = [
        f"{len(found) - limit} answers of {tier}s are ignored: there are more than {limit}"
        for tier, found in zip(TIERS, answers, strict=True)
        if len(found) > limit
    ]
    del answers
    members, failed = await _read(unread)
    found = await _first(chain(ignored, problems(members, failed, leader if not unknown else None)))
    said = await _first(chain([unknown] if unknown else [], notes(members)))
    return Survey(
        pool="/".join(split_pool(pool)),
        at=time.time(),
        leader=leader,
        members=tuple(members),
        failed=tuple(failed),
        problems=found,
        notes=said,
    )


async def _first(texts: Iterable[str | None]) -> tuple[str, ...]:
    """Each once, as many as there may be."""
    found: dict[str, None] = {}
    async for text in in_turns(texts):
        if text is None:
            continue
        text = text[:MAX_TEXT]
        if text not in found and len(found) == MAX_TEXTS:
            return (*found, "and more of that")
        found[text] = None
    return tuple(found)


async def _leader(bus: Bus, subjects: Subjects) -> tuple[str, str]:
    """(the id of the watcher that holds the lease, empty for nobody; why that isn't known)."""
    try:
        found = await jetstream.last(bus, subjects.leases_bucket, subjects.lease(LEASE))
        return ("", "") if found is None else (decode(Holder, found.data).owner.rpartition("/")[0], "")
    except JetStreamError as error:
        missing = error.error_code == jetstream.STREAM_NOT_FOUND
        return "", "" if missing else f"the lease can't be read: {error}"
    except BusError as error:
        return "", f"the lease can't be read: {error}"


async def _read(answers: deque[Answer]) -> tuple[list[MemberStatus], list[Failed]]:
    """Each answer is freed when it is read."""
    members: list[MemberStatus] = []
    failed: list[Failed] = []
    async for answer in in_turns(answers.popleft() for _ in range(len(answers))):
        try:
            members.append(read_status(answer))
        except BusError as error:
            failed.append(Failed(answer.tier, answer.id, answer.error or str(error)))
    members.sort(key=lambda member: (TIERS.index(member.tier) if member.tier in TIERS else len(TIERS), member.id))
    return members, failed


def read_status(answer: Answer) -> MemberStatus:
    """What a member says of itself. Raises as `Answer.read`, also for the status of another one."""
    status = answer.read(MemberStatus)
    if (status.tier, status.id) != (answer.tier, answer.id):
        raise Malformed(f"{answer.tier} {answer.id} answers as {status.tier} {status.id}"[:SHOWN])
    if (picker := status.picker) is not None:
        picker = replace(picker, unhealthy=_cut(picker.unhealthy), stale=picker.stale[:MAX_OF_MEMBER])
    if (collector := status.collector) is not None:
        collector = replace(collector, down=collector.down[:MAX_OF_MEMBER])
    return replace(
        status,
        picker=picker,
        collector=collector,
        reasons=_cut(status.reasons),
        notes=_cut(status.notes),
        convergence=_cut(status.convergence),
        configurations=status.configurations[:MAX_OF_MEMBER],
        sees={tier: ids[:MAX_SEEN] for tier, ids in _cut(status.sees).items()},
        configuration_warnings=status.configuration_warnings[:MAX_OF_MEMBER],
    )


def _cut(found: Mapping[str, T]) -> dict[str, T]:
    return dict(islice(found.items(), MAX_OF_MEMBER))


def problems(members: Sequence[MemberStatus], failed: Sequence[Failed], leader: str | None) -> Texts:
    """What is wrong with these members. `leader` holds the lease; None if that isn't known."""
    tiers = {tier: [member for member in members if member.tier == tier] for tier in TIERS}
    for tier, found in tiers.items():
        if not found and not any(failure.tier == tier for failure in failed):
            yield f"no {tier} answers"
    for failure in failed:
        yield f"{failure.tier} {failure.id}: {failure.error}"
    yield from _leadership(tiers["watcher"], failed, leader)
    yield from _identities(members, failed)
    yield from _grouped(members, _problems_of)
    yield from _configurations(members)
    yield from _copies(members)
    yield from _pickers(tiers["picker"])


def notes(members: Sequence[MemberStatus]) -> Texts:
    """What is worth to know of these members."""
    versions = defaultdict(list)
    for member in members:
        versions[member.version].append(f"{member.tier} {member.id}")
    if len(versions) > 1:
        yield f"versions differ: {_groups(versions)}"
    for member in members:
        yield from (f"configuration: {text}" for text in member.configuration_warnings)
        yield None
    yield from _grouped(members, _notes_of)


def _grouped(members: Sequence[MemberStatus], texts_of: Callable[[MemberStatus], Iterator[str]]) -> Texts:
    """The texts about the members. A text about several members of a tier appears once, with their ids."""
    said: dict[tuple[str, str], list[str]] = defaultdict(list)
    for member in members:
        for text in texts_of(member):
            said[member.tier, text].append(member.id)
        yield None
    for (tier, text), ids in said.items():
        yield f"{tier} {few(ids)}: {text}"


def _notes_of(member: MemberStatus) -> Iterator[str]:
    picker = member.picker
    for name, text in member.notes.items():
        if not (name == "endpoints" and picker is not None and picker.unhealthy_count):  # a problem says the same
            yield f"{name}: {text}"
    if member.longest_pause > PAUSE:
        yield f"its event loop once stood still for {member.longest_pause:.1f} s"
    if picker is not None and picker.prefixes.hashing and not picker.prefixes.complete:
        yield "it doesn't have the prefix placements of the others yet"


def _leadership(watchers: Sequence[MemberStatus], failed: Sequence[Failed], leader: str | None) -> Iterator[str]:
    leading = [member.id for member in watchers if member.watcher is not None and member.watcher.leads]
    if len(leading) > 1:
        yield f"{len(leading)} watchers lead: {few(leading)}"
    if leader == "" and watchers:
        yield "no watcher holds the lease"
    answering = {member.id for member in watchers} | {failure.id for failure in failed if failure.tier == "watcher"}
    if leader and leader not in answering:
        yield f"watcher {leader} holds the lease and doesn't answer"


def _identities(members: Sequence[MemberStatus], failed: Sequence[Failed]) -> Texts:
    """Members that others see and that don't answer, and those that answer twice."""
    processes: dict[tuple[str, str], list[MemberStatus]] = defaultdict(list)
    for member in members:
        processes[member.tier, member.id].append(member)
    for (tier, id), same in processes.items():
        if len(same) > 1:
            where = few([f"process {member.pid} on {member.host}" for member in same])
            yield f"{len(same)} processes are {tier} {id}: {where}"
    answering = processes.keys() | {(failure.tier, failure.id) for failure in failed}
    seen: dict[tuple[str, str], list[str]] = defaultdict(list)
    for member in members:
        sights = ((tier, id) for tier, ids in member.sees.items() for id in ids)
        for sight in islice(sights, _share(members)):
            if sight not in answering:
                seen[sight].append(member.id)
        yield None
    for (tier, id), by in sorted(islice(seen.items(), MAX_TEXTS + 1)):
        yield f"{tier} {id} doesn't answer, and is seen by {few(by)}"


def _share(members: Sequence[MemberStatus]) -> int:
    """Of what all members may have together, how much counts of each."""
    return max(1, MAX_SEEN // len(members))


def _problems_of(member: MemberStatus) -> Iterator[str]:
    """What a member itself says is wrong."""
    for name, reason in member.reasons.items():
        yield f"not ready: {name}: {reason}"
    if member.configuration_problem:
        yield f"the last configuration was refused: {member.configuration_problem}"
    facts = member.facts
    if facts is not None and facts.synced and (facts.age is None or facts.age > SILENT):
        silence = "" if facts.age is None else f" for {facts.age:.0f} s"
        yield f"it has had no message of the leading watcher{silence}"
    if facts is not None and facts.differs_for > LASTING:
        yield f"its facts have differed from the leading watcher's for {facts.differs_for:.0f} s"
    for part, repairs in member.convergence.items():
        if repairs.differs_for > LASTING:
            yield f"{part}: different from what its owners announce for {repairs.differs_for:.0f} s"
    if member.watcher is not None and member.watcher.disagreement:
        yield member.watcher.disagreement
    if member.collector is not None and member.collector.down_count:
        yield f"no pages of {_endpoints_text(member.collector.down_count, member.collector.down)}"
    if (picker := member.picker) is not None:
        if picker.stale_count:
            yield f"no fresh metrics of {_endpoints_text(picker.stale_count, picker.stale)}"
        if picker.unhealthy_count:
            named = [f"{id} ({why})" for id, why in picker.unhealthy.items()]
            yield f"ranked last: {_endpoints_text(picker.unhealthy_count, named)}"


def _configurations(members: Sequence[MemberStatus]) -> Texts:
    """Members of one pool should run one configuration."""
    revisions: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        for configured in member.configurations[: _share(members)]:
            revisions[configured.pool][configured.revision].append(f"{member.tier} {member.id}")
        yield None
    for pool, found in sorted(revisions.items()):
        yield f"{pool}: configurations differ: {_groups(found)}" if len(found) > 1 else None


def _copies(members: Sequence[MemberStatus]) -> Iterator[str]:
    """Copies of the facts with the same epoch and sequence are the same."""
    copies: dict[tuple[tuple[str, ...], int, int], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        facts = member.facts
        if facts is not None and facts.synced and facts.sequence == facts.announced_sequence:
            copies[member.pools[:1], facts.epoch, facts.sequence][facts.digest].append(f"{member.tier} {member.id}")
    for digests in copies.values():
        if len(digests) > 1:
            yield f"copies of the facts differ: {_groups(digests)}"


def _pickers(pickers: Sequence[MemberStatus]) -> Texts:
    """What pickers say of each other."""
    own = {member.id: member.picker for member in pickers if member.picker is not None}
    hashing = defaultdict(list)
    for id, picker in own.items():
        if picker.prefixes.hashing:
            hashing[picker.prefixes.hashing].append(id)
        for peer in picker.load.peers:
            if peer.id in own and _other_load(peer, own[peer.id].load):
                yield f"picker {id} has another load of picker {peer.id} than that one published"
        for origin in picker.prefixes.origins:
            if origin.id in own and _other_placements(origin, own[origin.id].prefixes):
                yield f"picker {id} has other prefix placements of picker {origin.id} than that one announced"
        yield None
    if len(hashing) > 1:
        yield f"pickers hash prompts differently, and don't share placements: {_groups(hashing)}"


def _other_load(known: PeerLoad, published: LoadStatus) -> bool:
    """Whether a picker's load differs from what another one knows of the same message."""
    if (known.run, known.sequence) != (published.run, published.sequence):
        return False
    if (published.run, published.sequence) == ("", 0):
        return False  # nothing was published
    return known.digest != published.digest


def _other_placements(known: PrefixOriginStatus, announced: PrefixStatus) -> bool:
    """Whether a picker's prefix placements differ from what another one knows up to the same batch."""
    if (known.run, known.applied) != (announced.run, announced.sequence):
        return False
    if not known.digest or not announced.digest:
        return False
    return known.digest != announced.digest


def _endpoints_text(count: int, names: Sequence[str]) -> str:
    return f"{count} endpoint{'' if count == 1 else 's'}: {few(names, count)}"


def _groups(found: Mapping[str, Sequence[str]]) -> str:
    """Who has which value, of the first values; and how many more there are."""
    shown = [f"{value}: {few(who)}" for value, who in sorted(found.items())[:GROUPS]]
    return "; ".join([*shown, *([f"{len(found) - GROUPS} more"] if len(found) > GROUPS else [])])


def few(names: Sequence[str], count: int | None = None) -> str:
    """The first of the names, and how many more of `count` there are."""
    count = len(names) if count is None else count
    shown = list(names[:NAMED])
    return ", ".join([*shown, *([f"{count - len(shown)} more"] if count > len(shown) else [])])
