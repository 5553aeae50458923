"""`kv_transfer_params`, by which vLLM's servers hand over the KV blocks of a prompt.

The prefill server is asked with `do_remote_decode` and says in its response where its blocks are. The decode server
gets that with the request and fetches them. Here no block travels: the decode server takes its time and has them.
"""

import msgspec
from msgspec import Struct

PREFILLER = "x-prefiller-host-port"
"""The header that names the prefill server to the sidecar."""


class KvTransferParams(Struct, frozen=True, kw_only=True):
    """What both sides say of a transfer. vLLM has more fields; they mean nothing here."""

    do_remote_decode: bool = False
    """Another server will decode: keep the blocks for it."""
    do_remote_prefill: bool = False
    """Another server has computed the prompt: fetch the blocks."""
    remote_engine_id: str | None = None
    remote_host: str | None = None
    remote_port: int | None = None
    remote_cached_tokens: int | None = None
    """Prompt tokens that the prefill server had in its cache. vLLM's sidecars read them from the response's usage."""


ASKED = KvTransferParams(do_remote_decode=True)


def offered(response: bytes, params: KvTransferParams) -> bytes:
    """A response, a JSON object that isn't empty, with the offer of a prefill server."""
    return response[:-1] + b',"kv_transfer_params":' + msgspec.json.encode(params) + b"}"


def transferred(params: KvTransferParams | None, prompt_tokens: int) -> int:
    """Prompt tokens that another server has computed. The last one is computed here: the first output comes from it."""
    return max(prompt_tokens - 1, 0) if params is not None and params.do_remote_prefill else 0
