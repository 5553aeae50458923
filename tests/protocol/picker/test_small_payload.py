from pathlib import Path

from tests.in_process import picker, serving
from tests.nats import nats_server
from tests.waiting import eventually


async def test_a_picker_whose_load_nats_refuses_goes_on_and_says_so(tmp_path: Path) -> None:
    async with nats_server(tmp_path / "nats", config="max_payload: 64") as nats:
        service = picker(nats.url)
        async with serving(service):
            await eventually(lambda: "don't receive this picker's load" in service.readiness.notes().get("load", ""))
            assert service.registry.get_sample_value("pointsman_task_crashes_total", {"task": "load"}) == 0
