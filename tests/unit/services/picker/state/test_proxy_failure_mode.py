import pytest

from services.picker.state.proxy_failure_mode import HEADER, REMEMBERED, ProxyFailureMode
from services.picker.state.view import View
from shared.model import FailureMode, Model, Pool

NAMED = Model(name="good", model_name="good")
ENVOY = "standalone-closed.yaml"
GATEWAY = "failureMode: FailOpen"


@pytest.mark.parametrize(
    ("named_models_only", "model", "envoy", "pool", "problem"),
    [
        (False, None, "open", FailureMode.FAIL_OPEN, None),
        (False, NAMED, "closed", FailureMode.FAIL_CLOSE, None),
        (False, NAMED, None, None, None),
        (False, NAMED, "open", FailureMode.FAIL_CLOSE, ENVOY),
        (False, NAMED, None, FailureMode.FAIL_OPEN, GATEWAY),
        (True, None, "open", None, ENVOY),
        (True, None, "closed", FailureMode.FAIL_OPEN, GATEWAY),
    ],
)
def test_a_closed_pool_behind_a_proxy_that_fails_open_is_a_contradiction(
    named_models_only: bool, model: Model | None, envoy: str | None, pool: FailureMode | None, problem: str | None
) -> None:
    view = View()
    if model is not None:
        view.upsert("model", model)
    if pool is not None:
        view.upsert("pool", Pool(name="pool", failure_mode=pool))
    proxy = ProxyFailureMode(view, lambda: 0.0, named_models_only=named_models_only)
    proxy.observe([("user-agent", "envoy"), *([(HEADER, envoy)] if envoy else [])])
    noted = proxy.problem()
    assert noted is problem is None or (noted is not None and problem is not None and problem in noted)


def test_a_proxy_counts_for_a_minute_after_its_last_stream() -> None:
    now = 100.0
    proxy = ProxyFailureMode(View(), lambda: now, named_models_only=True)
    proxy.observe([(HEADER, "open")])
    now += REMEMBERED - 0.001
    assert proxy.problem()
    now += 0.001
    assert proxy.problem() is None
