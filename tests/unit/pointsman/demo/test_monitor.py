"""What is read from Envoy's own words."""

from pointsman.demo.monitor import retries


def test_envoys_retries() -> None:
    text = "cluster.model-servers.upstream_rq_retry: 12\ncluster.pickers.upstream_rq_retry: 3\n"
    assert retries(text) == {"servers": 12, "pickers": 3}
    assert retries("") == {"servers": 0, "pickers": 0}
