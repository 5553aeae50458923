"""What the watcher says of resources, seen in the API server: conditions where the API has a place, Events.

What is said of what, how often and when: tests/unit/services/watcher/kubernetes, test_verdicts.py and test_reporter.py.
"""

import asyncio
from collections.abc import Mapping
from typing import Any

from tests.kubernetes.said import GRACE, MODEL, OBJECTIVE, POOLS, REWRITE, accepted, event, events, referring, says
from tests.kubernetes.watching import POOL, Site, pool_document
from tests.waiting import eventually

A_WHILE = 1.5
"""Seconds in which what shouldn't be written would have been: three of `GRACE`."""


async def test_what_is_taken_over_is_accepted(site: Site) -> None:
    """In both groups, with the generation that this is said of."""
    await site.serve("a")
    llmd = ("llm-d.ai/v1alpha2", "InferenceObjective")
    made: dict[str, tuple[tuple[str, str], dict[str, Any]]] = {
        "premium": (OBJECTIVE, {"priority": 10}),
        "rollout": (REWRITE, {"rules": [{"targets": [{"modelRewrite": "base-v2"}]}]}),
        "chat": (MODEL, {"modelName": "chat"}),
        "batch": (llmd, {}),
    }
    await site.create(*(referring(kind, name, **spec) for name, (kind, spec) in made.items()))
    async with site.watching() as service:
        for name, (kind, _) in made.items():
            condition = await says(site.admin, kind, name, site.namespace, "Accepted")
            assert (condition["status"], condition["observedGeneration"]) == ("True", 1)
            assert f"{site.namespace}/{POOL}" in condition["message"]
        assert not (await site.admin.get(*POOLS, POOL, site.namespace)).get("status")
        assert await events(site.admin, site.namespace) == []
        assert service.readiness.notes() == {}


async def test_what_pickers_cannot_get_is_invalid_for_as_long(site: Site) -> None:
    await site.serve("a")

    def rules(count: int) -> list[dict[str, Any]]:
        return [{"targets": [{"modelRewrite": f"base-{number}"}]} for number in range(count)]

    await site.create(referring(REWRITE, "rollout", rules=rules(20)))
    async with site.watching(max_fact_entries=10):
        condition = await says(site.admin, REWRITE, "rollout", site.namespace, "Invalid")
        assert condition["status"] == "False"
        assert condition["message"].endswith(" entries; 10 are allowed")
        await site.patch(REWRITE, "rollout", {"rules": rules(1)})
        await says(site.admin, REWRITE, "rollout", site.namespace, "Accepted")
        await site.patch(REWRITE, "rollout", {"rules": rules(20)})
        await says(site.admin, REWRITE, "rollout", site.namespace, "Invalid")


async def test_events_are_written_once_also_after_a_start_anew(site: Site) -> None:
    """A pool without pods, and a resource for a pool that there isn't; what is somebody else's is not told."""
    made = await site.create(pool_document("somebody-elses"), pool_document())
    await site.create(
        referring(OBJECTIVE, "premium"),
        referring(OBJECTIVE, "lost", "nowhere"),
        referring(OBJECTIVE, "elsewhere", "somebody-elses"),
    )
    async with site.watching(**GRACE):
        await says(site.admin, OBJECTIVE, "premium", site.namespace, "Accepted")
        found = await event(site.admin, site.namespace, "NoEndpoints")
        assert (found["regarding"]["uid"], found["type"]) == (made["metadata"]["uid"], "Warning")
        assert found["note"].startswith("spec.selector: no pod of namespace")
        assert "app=vllm" in found["note"]
        found = await event(site.admin, site.namespace, "PoolNotFound")
        assert found["regarding"]["name"] == "lost"
        assert "spec.poolRef.name: there is no InferencePool 'nowhere'" in found["note"]
        for name in ("lost", "elsewhere"):
            assert await accepted(site.admin, OBJECTIVE, name, site.namespace) == {}
        before = await _versions(site)
        assert len(before) == 5
    async with site.watching(**GRACE) as service:
        await eventually(lambda: service.leadership.leads and service.readiness.ready, "it leads")
        await asyncio.sleep(A_WHILE)
        assert await _versions(site) == before


async def _versions(site: Site) -> dict[str, str]:
    found = [*(await site.admin.list(*OBJECTIVE, site.namespace))["items"], *(await events(site.admin, site.namespace))]
    return {item["metadata"]["name"]: item["metadata"]["resourceVersion"] for item in found}


async def test_a_condition_of_another_controller_is_not_taken_over(site: Site) -> None:
    await site.create(pool_document(), referring(OBJECTIVE, "theirs"), referring(OBJECTIVE, "ours"))
    theirs = {
        "type": "Accepted",
        "status": "Unknown",
        "reason": "Pending",
        "message": "by somebody else",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    await _own(site, theirs)
    async with site.watching() as service:
        await says(site.admin, OBJECTIVE, "ours", site.namespace, "Accepted")
        left = f"InferenceObjective {site.namespace}/theirs"
        await eventually(lambda: left in service.state()["status"]["left_alone"], "it is left alone")
        version = (await site.admin.get(*OBJECTIVE, "theirs", site.namespace))["metadata"]["resourceVersion"]
        assert service.registry.get_sample_value("pointsman_watcher_condition_conflicts_total") == 1.0
        await asyncio.sleep(A_WHILE)
        found = await site.admin.get(*OBJECTIVE, "theirs", site.namespace)
        assert found["metadata"]["resourceVersion"] == version
        assert found["status"]["conditions"] == [theirs]
        assert service.registry.get_sample_value("pointsman_watcher_condition_conflicts_total") == 1.0
        await _own(site, None)
        await says(site.admin, OBJECTIVE, "theirs", site.namespace, "Accepted")
        await _own(site, {**theirs, "reason": "Theirs"})  # and takes it over later
        await eventually(lambda: bool(service.state()["status"]["left_alone"]), "it is left alone")
        await asyncio.sleep(A_WHILE)
        assert (await accepted(site.admin, OBJECTIVE, "theirs", site.namespace))["reason"] == "Theirs"


async def _own(site: Site, condition: Mapping[str, Any] | None) -> None:
    """Apply the condition by force, as another controller; None gives it back."""
    conditions = [] if condition is None else [dict(condition)]
    body = {**referring(OBJECTIVE, "theirs"), "status": {"conditions": conditions}}
    del body["spec"]
    await site.admin.apply(body, site.namespace, manager="another-controller", subresource="status")


async def test_a_condition_that_is_no_longer_ours_to_say_is_taken_back(site: Site) -> None:
    """Who serves its new pool may say something of it; that stays."""
    await site.create(pool_document(), pool_document("another"), referring(OBJECTIVE, "premium"))
    async with site.watching():
        await says(site.admin, OBJECTIVE, "premium", site.namespace, "Accepted")
        await site.patch(OBJECTIVE, "premium", {"poolRef": {"name": "another"}})

        async def gone() -> bool:
            return not await accepted(site.admin, OBJECTIVE, "premium", site.namespace)

        await eventually(gone, "no condition")
        async with site.watching(pool_name="another", nats_prefix="second"):
            await says(site.admin, OBJECTIVE, "premium", site.namespace, "Accepted")
            await asyncio.sleep(A_WHILE)
            condition = await accepted(site.admin, OBJECTIVE, "premium", site.namespace)
            assert "another" in condition["message"]
