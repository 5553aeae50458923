"""deploy/envoy/standalone-closed.yaml, generated from standalone.yaml: the same Envoy, but it fails closed."""

CHANGES = (
    (
        """\
# It fails open: no request fails because of a picker, and without any picker the traffic goes round robin, unread. For
# a pool that serves only models that it names, use standalone-closed.yaml, which differs only in this.
""",
        """\
# It fails closed: a request that no picker has answered gets a 503. A pool that serves only models that it names needs
# this. `make docs` generates this file from standalone.yaml, which lets such requests pass.
""",
    ),
    ("{key: x-pointsman-failure-mode, value: open}", "{key: x-pointsman-failure-mode, value: closed}"),
    (
        "# If a picker doesn't answer or is gone, the request continues without a pick.",
        "# No request passes without a picker's answer.",
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
