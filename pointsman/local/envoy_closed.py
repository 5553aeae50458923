"""deploy/envoy/standalone-closed.yaml, made of standalone.yaml: the same Envoy, which fails closed."""

CHANGES = (
    (
        """\
# It fails open: no request is lost to a picker, and without any picker the traffic goes round robin, unread. For a pool
# that serves only models that it names take standalone-closed.yaml, which differs in that alone.
""",
        """\
# It fails closed: a request that no picker has answered is a 503. A pool needs that which serves only models that it
# names. `make docs` makes this file of standalone.yaml, which lets such requests pass.
""",
    ),
    ("{key: x-pointsman-failure-mode, value: open}", "{key: x-pointsman-failure-mode, value: closed}"),
    (
        "# A picker that doesn't answer, and one that is gone, cost the choice, not the request.",
        "# No request passes that no picker has read.",
    ),
    (
        "failure_mode_allow: true\n",
        "failure_mode_allow: false\n                      status_on_error: {code: ServiceUnavailable}\n",
    ),
)


def closed(standalone: str) -> str:
    """The text of the configuration that fails closed. Raises ValueError for one that isn't standalone.yaml's."""
    for before, after in CHANGES:
        if standalone.count(before) != 1:
            raise ValueError(f"the configuration doesn't have once: {before.strip()}")
        standalone = standalone.replace(before, after)
    return standalone
