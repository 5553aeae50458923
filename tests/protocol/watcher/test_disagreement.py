"""Two watchers that read different files."""

from pathlib import Path

from services.watcher.disagreement import Disagreement
from tests.nats import NatsServer
from tests.protocol.watcher.harness import endpoints_text, reader, replace, watcher
from tests.waiting import eventually


async def test_the_one_on_standby_says_that_it_would_publish_something_else(nats: NatsServer, tmp_path: Path) -> None:
    each, other = tmp_path / "one.yaml", tmp_path / "other.yaml"
    each.write_text(endpoints_text("a", "b"))
    other.write_text(endpoints_text("a", "c"))
    async with reader(nats.url) as seen, watcher(nats.url, endpoints_file=str(each)) as leader:
        await seen.sees("a", "b")
        async with watcher(nats.url, endpoints_file=str(other)) as standby:
            standby.leadership.disagreement = Disagreement(settling=0.0)
            note = await eventually(lambda: standby.readiness.notes().get("other watchers"), "a note")
            assert note is not None
            assert "default_default.endpoint.default/b, default_default.endpoint.default/c" in note
            assert leader.readiness.notes() == {}
            await seen.sees("a", "b")
            replace(other, endpoints_text("a", "b"))
            await eventually(lambda: not standby.readiness.notes(), "no note")
