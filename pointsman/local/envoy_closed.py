"""deploy/envoy/standalone-closed.yaml, generated from standalone.yaml: the same Envoy, but it fails closed, and clients
reach only the paths of inference APIs."""

from textwrap import indent

PATHS = (
    "/v1/chat/completions",
    "/v1/chat/completions/render",
    "/v1/completions",
    "/v1/completions/render",
    "/v1/embeddings",
    "/v1/responses",
    "/v1/conversations",
    "/v1/images/generations",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/inference/v1/generate",
    "/v1/models",
    "/health",
)
"""What clients reach: the paths of the pickers' parsers for HTTP, and those by which one looks at a server."""

_INDENT = " " * 24
_PATHS = "|\\\n        ".join(PATHS)
_FIRST = f"""\
# Only these paths reach model servers. Others are for operators, such as /v1/load_lora_adapter.
- match:
    safe_regex: &paths
      regex: "\\
        {_PATHS}"
    headers: [{{name: content-length, range_match: {{start: 0,"""
_REST = """\
- match: {safe_regex: *paths}
  route: *model-servers
# All others get 404, without a picker, in the error format of Anthropic's API or of OpenAI's.
- match: {safe_regex: {regex: ".*/messages(/.*)?"}}
  direct_response:
    status: 404
    body:
      inline_string: >-
        {"type": "error", "error": {"type": "not_found_error", "message": "this path isn't served"}}
  response_headers_to_add: &json
    - header: {key: content-type, value: application/json}
      append_action: OVERWRITE_IF_EXISTS_OR_ADD
  typed_per_filter_config: &no-picker
    envoy.filters.http.ext_proc:
      "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.ExtProcPerRoute
      disabled: true
- match: {prefix: /}
  direct_response:
    status: 404
    body:
      inline_string: >-
        {"error": {"message": "this path isn't served", "type": "invalid_request_error", "param": null, "code": 404}}
  response_headers_to_add: *json
  typed_per_filter_config: *no-picker
"""

_RUNTIME = """\
layered_runtime:
  layers:
    # The expression of the paths is longer than Envoy's default permits (100).
    - {name: static, static_layer: {re2.max_program_size.error_level: 1000}}

"""

CHANGES = (
    (
        """\
# It fails open: no request fails because of a picker, and without any picker the traffic goes round robin, unread. For
# a pool that serves only models that it names, use standalone-closed.yaml. It differs only in this, and in its routes,
# which list the paths that clients reach.
""",
        """\
# It fails closed: a request that no picker has answered gets a 503. A pool that serves only models that it names needs
# this. `make docs` generates this file from standalone.yaml, which lets such requests pass. Clients reach only the
# paths of inference APIs; for a path that you need besides, add it to the expression that lists theirs.
""",
    ),
    (
        """\
if a picker fails, no request fails while another picker runs. If
# a picker is slow, the wait is bounded (message_timeout). A picker can request the body of a single response
# (mode_override).
""",
        """\
if a picker fails, only those requests fail that it has routed
# and that aren't complete. If a picker is slow, the wait is bounded (message_timeout). A picker can request the body of
# a single response (mode_override).
""",
    ),
    ("static_resources:\n", f"{_RUNTIME}static_resources:\n"),
    ("{key: x-pointsman-failure-mode, value: open}", "{key: x-pointsman-failure-mode, value: closed}"),
    (
        "# If a picker doesn't answer or is gone, the request continues without a pick.",
        "# No request passes without a picker's answer.",
    ),
    (
        "failure_mode_allow: true\n",
        "failure_mode_allow: false\n                      status_on_error: {code: ServiceUnavailable}\n",
    ),
    (
        indent("- match:\n    prefix: /\n    headers: [{name: content-length, range_match: {start: 0,", _INDENT),
        indent(_FIRST, _INDENT),
    ),
    (indent("    prefix: /\n", _INDENT), indent("    safe_regex: *paths\n", _INDENT)),
    (indent("- match: {prefix: /}\n  route: *model-servers\n", _INDENT), indent(_REST, _INDENT)),
)


def closed(standalone: str) -> str:
    """The text of the configuration that fails closed. Raises ValueError for one that isn't standalone.yaml's."""
    for before, after in CHANGES:
        if standalone.count(before) != 1:
            raise ValueError(f"the configuration doesn't have once: {before.strip()}")
        standalone = standalone.replace(before, after)
    return standalone
