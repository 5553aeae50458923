import numpy as np

from services.picker.scheduling.handlers.single_profile import SingleProfileHandler
from services.picker.scheduling.record import ProfileRun
from tests.unit.services.picker.world import cycle, pool

HANDLER = SingleProfileHandler("handler")


def test_the_profile_runs_once_and_is_the_primary() -> None:
    run = cycle(pool("a1"))
    assert HANDLER.next_profiles(run, ("only",), {}) == ("only",)
    rows = np.zeros(1, np.intp)
    results = {"only": ProfileRun("only", rows, (), rows, (), np.zeros(1), "picker", (0,))}
    assert HANDLER.next_profiles(run, ("only",), results) == ()
    assert HANDLER.primary(run, results) == "only"
