"""The watcher against a real API server: what pickers see is what the cluster says. What becomes of a pod, a slice or
a resource in detail: tests/unit/services/watcher/kubernetes."""

from pathlib import Path

import pytest
from msgspec import structs

from pointsman.drain import DrainOptions, annotate
from services.watcher.kubernetes.client import connect
from services.watcher.kubernetes.drain import drain_endpoint
from services.watcher.kubernetes.errors import KubernetesError
from services.watcher.kubernetes.settings import KubernetesSettings
from shared.bus.actions import drain
from shared.bus.subjects import Subjects, pool_token
from shared.config.problems import Invalid
from shared.model import DRAIN, Endpoint, Pool
from tests.kubernetes.watching import LABELS, POOL, Site, config_map, pool_document
from tests.protocol.watcher.harness import replace
from tests.waiting import eventually

DOCUMENT = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: {}\n"


async def test_a_ready_pod_that_is_selected_is_an_endpoint_until_it_ends(site: Site) -> None:
    pods = site.pods
    await site.serve("a")
    await pods.create("b", labels=LABELS)
    await pods.create("other", "10.1.0.9", labels={"app": "other"})
    async with site.watching(), site.reading() as seen:
        await seen.sees("a-rank-0")
        [one] = seen.facts("endpoint").values()
        assert isinstance(one, Endpoint)
        assert (one.authority, one.labels, one.node) == ("10.1.0.1:8000", LABELS, "node-1")
        assert one.uid
        await pods.report("b", "10.1.0.2")
        await seen.sees("a-rank-0", "b-rank-0")
        await pods.report("a", ready=False)
        await seen.sees("b-rank-0")
        await pods.report("a")
        await seen.sees("a-rank-0", "b-rank-0")
        await pods.label("b", {"app": "draining"})
        await seen.sees("a-rank-0")
        await pods.terminate("a")
        await seen.sees()
        await pods.label("b", LABELS)
        await seen.sees("b-rank-0")
        await pods.delete("b")
        await seen.sees()


async def test_a_pod_that_is_drained_drains_and_a_new_watcher_knows_it(site: Site, tmp_path: Path) -> None:
    """`pointsman drain` and `undrain`, an annotation of kubectl's, and a label."""
    await site.serve("a", "b")
    kubeconfig = str(site.server.kubeconfig(tmp_path / "kubeconfig"))
    options = DrainOptions(name=f"{site.namespace}/a", kubernetes=True, kubeconfig=kubeconfig)

    def draining() -> list[str]:
        return [each.name for each in seen.facts("endpoint").values() if isinstance(each, Endpoint) and each.draining]

    async with site.reading() as seen:
        async with site.watching():
            await seen.sees("a-rank-0", "b-rank-0")
            assert await annotate(options, True) == f"{site.namespace}/a"
            await eventually(lambda: draining() == ["a-rank-0"], "a drains")
        async with site.watching():
            await site.pods.label("b", {DRAIN: "yes"})
            await eventually(lambda: sorted(draining()) == ["a-rank-0", "b-rank-0"], "both drain")
            await annotate(options, False)
            await eventually(lambda: draining() == ["b-rank-0"], "a takes requests")
            await seen.sees("a-rank-0", "b-rank-0")


async def test_a_pod_is_drained_for_a_console(site: Site, tmp_path: Path) -> None:
    await site.serve("a")
    await site.pods.create("a-rank-0")  # called as the endpoint of a, and of no pool
    asked = Subjects(), pool_token(site.namespace, POOL)

    def draining() -> bool:
        return any(isinstance(each, Endpoint) and each.draining for each in seen.facts("endpoint").values())

    async with site.reading() as seen, site.watching(allow_actions=True):
        await seen.sees("a-rank-0")
        for wanted in (True, False):
            done = await drain(seen.bus, *asked, f"{site.namespace}/a-rank-0", drain=wanted, by="a test")
            assert done.error == ""
            await eventually(draining if wanted else lambda: not draining(), f"drains: {wanted}")
        done = await drain(seen.bus, *asked, f"{site.namespace}/other-rank-0", drain=True, by="a test")
        assert "no endpoint" in done.error
        [endpoint] = seen.facts("endpoint").values()
        assert isinstance(endpoint, Endpoint)
    former = structs.replace(endpoint, uid="00000000-0000-0000-0000-000000000000")
    client = await connect(KubernetesSettings(kubeconfig=str(site.server.kubeconfig(tmp_path / "kubeconfig"))))
    try:
        with pytest.raises(KubernetesError, match=r"uid.*immutable"):
            await drain_endpoint(client, former, True)
    finally:
        await client.close()


async def test_the_configuration_of_a_file_is_followed_beside_the_cluster(site: Site) -> None:
    await site.serve("a")
    file = site.directory / "config.yaml"
    file.write_text(DOCUMENT.format("queue-scorer"))
    async with site.watching(config_file=str(file)) as service, site.reading() as seen:
        await seen.sees("a-rank-0")
        await eventually(lambda: "queue-scorer" in str(seen.facts("config")), "the configuration")
        replace(file, DOCUMENT.format("queue-scorre"))
        await eventually(lambda: "queue-scorre" in str(service.readiness.notes()), "the reason")
        assert "queue-scorer" in str(seen.facts("config"))
        replace(file, DOCUMENT.format("kv-cache-utilization-scorer"))
        await eventually(lambda: "kv-cache" in str(seen.facts("config")), "the next one")


async def test_each_pool_has_the_configuration_of_its_own_config_map(site: Site) -> None:
    """One watcher serves both; a bad document is the other pool's affair alone."""
    await site.serve("a")
    await site.create(pool_document("second"), config_map("all", DOCUMENT.format("queue-scorer")))
    await site.create(config_map("own", DOCUMENT.format("kv-cache-utilization-scorer")))
    async with (
        site.watching(pools=(POOL, "second=own"), config_map="all") as service,
        site.reading() as first,
        site.reading("second") as second,
    ):
        await eventually(lambda: "queue-scorer" in str(first.facts("config")), "the first one's")
        await eventually(lambda: "kv-cache" in str(second.facts("config")), "the second one's")
        await site.apply(config_map("own", DOCUMENT.format("kv-cache-scorre")))
        await eventually(lambda: "kv-cache-scorre" in str(service.readiness.notes()), "the reason")
        await site.apply(config_map("all", DOCUMENT.format("prefix-cache-scorer")))
        await eventually(lambda: "prefix-cache" in str(first.facts("config")), "the first one's next")
        assert "kv-cache-utilization-scorer" in str(second.facts("config"))


async def test_a_configuration_file_that_is_bad_at_the_start_ends_the_process(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(DOCUMENT.format("queue-scorre"))
    with pytest.raises(Invalid, match=r"config\.yaml"):
        async with site.watching(config_file=str(file)):
            pass


async def test_the_defaults_that_the_server_fills_in_are_read(site: Site) -> None:
    reference = {"name": "picker", "port": {"number": 9002}}
    made = await site.create(pool_document(endpointPickerRef=reference))
    assert (made["spec"]["appProtocol"], made["spec"]["endpointPickerRef"]["kind"]) == ("http", "Service")
    async with site.watching(), site.reading() as seen:
        await seen.sees()
        pool = Pool(name=POOL, namespace=site.namespace, selector=LABELS, target_ports=(8000,), app_protocol="http")
        assert seen.facts("pool") == {"": pool}
