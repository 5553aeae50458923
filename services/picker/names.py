"""Names of the endpoint picker protocol (Gateway API Inference Extension, proposal 004) and of llm-d's extensions.

Where a header has a newer and an older name, the newer one wins when both are there.
"""

OBJECTIVE_HEADERS = ("x-llm-d-inference-objective", "x-gateway-inference-objective")
REWRITE_HEADERS = ("x-llm-d-model-name-rewrite", "x-gateway-model-name-rewrite")

REJECTED_SATURATED = "rejected-saturated"
REJECTED_MEMORY = "rejected-memory"
REJECTED_NO_ENDPOINTS = "rejected-no-endpoints"
