"""The plugin that docs/plugins/README.md shows works as it stands."""

import re
from typing import Any

from pointsman.docs import ROOT
from tests.unit.services.picker.extproc.proxy import response_headers
from tests.unit.services.picker.hooked import World

PAGE = (ROOT / "docs/plugins/README.md").read_text(encoding="utf-8")


def test_the_example_keeps_what_it_needs_of_a_request_until_the_response() -> None:
    (text,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    found: dict[str, Any] = {}
    exec(text, found)
    world = World(found["SessionToken"])
    for session, wanted in (("s7", {"x-session-token": "s7@a1"}), ("", {})):
        stream, _ = world.ask(x_session_id=session)
        (answer,) = world.say(stream, response_headers(served="10.0.0.1:8000"))
        assert answer.set_headers == wanted
        stream.end()
