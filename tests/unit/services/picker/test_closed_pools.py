"""Pools that serve only models that they name: what a client may say to get another one, and doesn't."""

import json
import struct
from typing import Any

import pytest

from services.picker.extproc.messages import BodyMode
from services.picker.metadata import REWRITE_HEADERS
from services.picker.state.view import View
from shared.model import Model, ModelRewrite, RewriteRule, Target
from tests.unit.services.picker.extproc.proxy import FULL_DUPLEX, LEAN, body, headers
from tests.unit.services.picker.handler import PickerUnderTest, destinations, refused
from tests.unit.services.picker.parsers.vllm_schema import message
from tests.unit.services.picker.world import pool

VLLM_GRPC = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: vllmgrpc-parser
requestHandler: {parsers: [{pluginRef: vllmgrpc-parser}]}
"""
SGLANG = VLLM_GRPC.replace("vllmgrpc", "sglanghttp")
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "hi"}]
MULTIPART = b'--b\r\ncontent-disposition: form-data; name="model"\r\n\r\nsecret\r\n--b--\r\n'

Modes = tuple[BodyMode, BodyMode]
MODES = (LEAN, FULL_DUPLEX, (BodyMode.NONE, BodyMode.NONE))


def by_models() -> tuple[View, dict[str, Any]]:
    """Closed by an InferenceModel; `dear` is named too, and split."""
    view = pool("a1")
    view.upsert("pool.model.m", Model(name="m", model_name="cheap"))
    view.upsert("pool.model.d", Model(name="d", model_name="dear", targets=(Target(model="dear-v1"),)))
    return view, {}


def by_setting() -> tuple[View, dict[str, Any]]:
    """Closed by `--require-named-models`; a rewrite names what it serves."""
    view = pool("a1")
    targets = (Target(model="dear-v1"),)
    same = RewriteRule(models=("cheap",), targets=(Target(model="cheap"),))
    view.upsert("pool.rewrite.r", ModelRewrite(name="r", rules=(RewriteRule(models=("dear",), targets=targets), same)))
    return view, {"named_models_only": True}


CLOSED = pytest.mark.parametrize("closed", [by_models, by_setting])


class Closed(PickerUnderTest):
    """A picker of a closed pool."""

    def __init__(self, closed: Any, document: str = "", *, everything: bool = False) -> None:
        view, options = closed()
        if everything:
            view.upsert(
                "pool.rewrite.all", ModelRewrite(name="all", rules=(RewriteRule(targets=(Target(model="cheap"),)),))
            )
        super().__init__(view, document, **options)

    def ask(
        self,
        sent: Any,
        path: str = CHAT,
        *,
        method: str = "POST",
        modes: Modes = LEAN,
        more: dict[str, str] | None = None,
        end: bool = True,
    ) -> tuple[int, str]:
        """(status, the body's text) of a refusal, or (200, the target model)."""
        data = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
        fields = {":method": method, ":path": path, **(more or {})}
        shown = modes[0] in (BodyMode.NONE, BodyMode.STREAMED)
        stream, answers = self.begin(headers(fields, modes=modes), *([] if shown else [body(data, end=end)]))
        stream.end()
        if stream.closed and answers[-1].status:
            answer = refused(answers)
            return answer.status, answer.body.decode()
        assert destinations(answers) == "10.0.0.1:8000"
        return 200, self.ring.newest(1)[0].target_model


@CLOSED
@pytest.mark.parametrize("header", REWRITE_HEADERS)
def test_a_header_leads_to_no_model_that_the_pool_doesnt_name(closed: Any, header: str) -> None:
    view, options = closed()
    view.upsert("pool.model.plain", Model(name="plain", model_name="plain"))
    picker = Closed(lambda: (view, options))
    assert picker.ask({"model": "secret", "messages": MESSAGES})[0] == 404
    status, text = picker.ask({"model": "plain", "messages": MESSAGES}, more={header: "secret"})
    assert (status, json.loads(text)["error"]["type"]) == (404, "model_not_found")
    assert "'secret' is not served by this pool" in text
    assert picker.ask({"model": "plain", "messages": MESSAGES}, more={header: "dear"}) == (200, "dear")
    assert picker.ask({"model": "dear", "messages": MESSAGES}, more={header: "secret"}) == (200, "dear-v1"), "by rule"
    assert picker.ask({"model": "secret", "messages": MESSAGES}, more={header: "plain"})[0] == 404


@CLOSED
@pytest.mark.parametrize("model", [{}, {"model": ""}, {"model": None}])
@pytest.mark.parametrize("asked", ["secret", "cheap", ""])
def test_a_header_stands_for_no_model_that_a_body_lacks(closed: Any, model: dict[str, Any], asked: str) -> None:
    more = {REWRITE_HEADERS[1]: asked} if asked else {}
    status, text = Closed(closed).ask({"messages": MESSAGES, **model}, more=more)
    assert (status, json.loads(text)["error"]["type"]) == (400, "invalid_request_error")
    assert "model not found in request body" in text


@CLOSED
def test_a_rule_for_every_model_names_them_all_and_supplies_a_missing_one(closed: Any) -> None:
    picker = Closed(closed, everything=True)
    for sent in ({"messages": MESSAGES}, {"model": "any", "messages": MESSAGES}):
        assert picker.ask(sent, more={REWRITE_HEADERS[0]: "secret"}) == (200, "cheap")
    assert picker.ask(b"{}", "/v1/rerank") == (200, "")
    assert picker.ask(b"", modes=(BodyMode.NONE, BodyMode.NONE)) == (200, "")
    _, answers = picker.begin(headers({":method": "GET", ":path": "/metrics"}, modes=LEAN, end=True))
    assert destinations(answers) == "10.0.0.1:8000"


@CLOSED
@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/v1/rerank", {"model": "secret", "query": "q"}),
        ("/tokenize", {"model": "secret", "prompt": "p"}),
        ("/v1/audio/transcriptions", MULTIPART),
        ("/v1/complet%2569ons", {"model": "secret", "prompt": "p"}),
        ("/v1/rerank", b"not JSON"),
    ],
)
@pytest.mark.parametrize("modes", [LEAN, FULL_DUPLEX], ids=["buffered", "full duplex"])
def test_a_body_that_no_parser_reads_could_be_for_any_model(closed: Any, path: str, sent: Any, modes: Modes) -> None:
    status, text = Closed(closed).ask(sent, path, modes=modes)
    assert (status, json.loads(text)["error"]["type"]) == (400, "invalid_request_error")
    assert "can't read the model" in text


@CLOSED
def test_a_body_that_the_proxy_doesnt_show_whole_could_be_for_any_model(closed: Any) -> None:
    partial, whole = (BodyMode.BUFFERED_PARTIAL, BodyMode.NONE), {"model": "cheap", "messages": MESSAGES}
    picker = Closed(closed)
    for mode in (BodyMode.NONE, BodyMode.STREAMED):
        assert picker.ask(b"", modes=(mode, BodyMode.NONE))[0] == 400
    assert picker.ask(json.dumps(whole).encode()[:20], modes=partial, end=False)[0] == 400
    assert picker.ask(whole, modes=partial) == (200, "cheap")


@CLOSED
@pytest.mark.parametrize("method", ["PUT", "PATCH", "GET", "DELETE"])
@pytest.mark.parametrize("modes", MODES)
def test_a_body_of_another_method_is_read_by_nobody(closed: Any, method: str, modes: Modes) -> None:
    for path in (COMPLETION, "/v1/models"):
        assert Closed(closed).ask({"model": "secret", "prompt": "p"}, path, method=method, modes=modes)[0] == 400


@CLOSED
@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/models", 200),
        ("HEAD", "/v1/models/", 200),
        ("GET", "/v1/models?limit=1", 200),
        ("GET", "/health", 200),
        ("DELETE", "/v1/models", 404),
        ("POST", "/v1/models", 404),
        ("OPTIONS", CHAT, 404),
        ("GET", "/metrics", 404),
        ("GET", "/metrics/health", 404),
        ("GET", "/metrics/v1/models", 404),
        ("GET", "//health", 404),
        ("GET", "/flush_cache?/v1/models", 404),
        ("POST", "/flush_cache", 404),
        ("POST", "/sleep?level=2", 404),
        ("GET", "/v1/responses/resp_1", 404),
    ],
)
def test_without_a_body_a_request_only_looks(closed: Any, method: str, path: str, status: int, modes: Modes) -> None:
    exchange, answers = Closed(closed).begin(headers({":method": method, ":path": path}, modes=modes, end=True))
    if status == 200:
        assert destinations(answers) == "10.0.0.1:8000"
    else:
        assert (exchange.closed, refused(answers).status) == (True, 404)
        assert json.loads(refused(answers).body)["error"]["type"] == "invalid_request_error"


@CLOSED
@pytest.mark.parametrize("modes", MODES[:2])
@pytest.mark.parametrize("below", ["/metrics", "/prometheus/metrics", "/metricsx", "/%6Detric%73", "/team%2fmetrics"])
def test_below_the_metrics_of_a_server_no_api_is_served(closed: Any, below: str, modes: Modes) -> None:
    """What servers mount there answers every path with the metrics."""
    for path, sent in (
        (CHAT, {"model": "cheap", "messages": MESSAGES}),
        ("/v1/conversations", {"items": [{"role": "user"}]}),
        ("/v1/messages/count_tokens", {}),
    ):
        assert Closed(closed).ask(sent, path, modes=modes)[0] == 200
        assert Closed(closed).ask(sent, below + path, modes=modes)[0] == 404
        assert Closed(closed).ask(sent, f"{path}?x=/metrics", modes=modes)[0] == 200


@CLOSED
def test_what_no_model_reads_passes_where_it_names_none(closed: Any) -> None:
    picker = Closed(closed)
    assert picker.ask({"items": [{"role": "user"}]}, "/v1/conversations") == (200, "")
    assert picker.ask({"items": [{"role": "user"}], "model": "secret"}, "/v1/conversations")[0] == 404
    assert picker.ask({"model": "secret", "messages": MESSAGES}, "/v1/messages/count_tokens")[0] == 404
    for unreadable in (b'{"model":"secret","x":NaN}', b'\xef\xbb\xbf{"model":"secret"}'):
        assert picker.ask(unreadable, "/v1/messages/count_tokens")[0] == 400


@CLOSED
@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        ({"model": "cheap", "text": "x"}, (200, "cheap")),
        ({"model": "cheap", "text": "x", "lora_path": None}, (200, "cheap")),
        ({"text": "x", "lora_path": "cheap"}, (200, "cheap")),
        ({"model": "secret", "text": ["x", "y"], "lora_path": ["dear", "dear"]}, (200, "dear")),
        ({"model": "cheap", "text": "x", "lora_path": "secret"}, 404),
        ({"model": "cheap", "text": ["x", "y"], "lora_path": ["secret", "secret"]}, 404),
        ({"model": "cheap", "text": ["x", "y"], "lora_path": ["cheap", "secret"]}, 400),
        ({"text": "x"}, 400),
        ({"input_ids": [[]], "input_embeds": [[0.1]]}, 400),
        ({"input_ids": [[]], "input_embeds": [[0.1]], "model": "secret"}, 404),
    ],
)
def test_what_sglang_takes_for_the_model_is_what_the_pool_names(
    closed: Any, sent: dict[str, Any], answer: int | tuple[int, str]
) -> None:
    found = Closed(closed, SGLANG).ask(
        sent, "/generate", more={REWRITE_HEADERS[0]: "cheap"} if "lora_path" in sent else {}
    )
    assert answer in (found, found[0])


@CLOSED
@pytest.mark.parametrize("path", [CHAT, COMPLETION])
@pytest.mark.parametrize(
    ("adapters", "status"),
    [
        *[(none, 200) for none in (None, "", [], [None, ""])],
        ("dear", 200),
        (["dear", None], 200),
        (["dear"] * 1000, 200),
        ("secret", 404),
        (["dear", "secret"], 404),
        (["dear", 5], 404),
    ],
)
def test_an_adapter_beside_the_model_is_one_that_the_pool_names(
    closed: Any, path: str, adapters: Any, status: int
) -> None:
    """SGLang takes it in place of the model."""
    sent = {"model": "cheap", "messages": MESSAGES, "prompt": "p", "lora_path": adapters}
    assert Closed(closed).ask(sent, path)[0] == status


@CLOSED
@pytest.mark.parametrize(("everything", "status"), [(False, 400), (True, 200)])
@pytest.mark.parametrize("prompt", [{"text": "hello"}, {"tokenized": {"input_ids": []}}], ids=["text", "no token"])
def test_a_grpc_call_names_no_model(closed: Any, everything: bool, status: int, prompt: dict[str, Any]) -> None:
    payload: bytes = message("GenerateRequest", **prompt).SerializeToString()
    picker = Closed(closed, VLLM_GRPC, everything=everything)
    sent, path = struct.pack(">BI", 0, len(payload)) + payload, "/vllm.grpc.engine.VllmEngine/Generate"
    assert picker.ask(sent, path, modes=FULL_DUPLEX, more={"content-type": "application/grpc"})[0] == status
