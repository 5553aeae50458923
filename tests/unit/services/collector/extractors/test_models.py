"""Which models a server's answer says that it serves."""

import json
from typing import Any

import pytest

from services.collector.extractors import models
from services.collector.extractors.models import Listing, ModelsExtractor, ModelsExtractorParameters, read_models
from services.collector.page.selection import Outcome
from shared.attributes import SERVED_MODELS, AttributeMap
from shared.model import Endpoint

ENDPOINT = Endpoint(id="default/a", name="a", address="10.0.0.1", port=8000)
VLLM: dict[str, Any] = {
    "object": "list",
    "data": [
        {"id": "llama", "object": "model", "root": "/models/llama", "parent": None, "permission": [{"id": "p"}]},
        {"id": "sql", "object": "model", "root": "/adapters/sql", "parent": "llama", "max_model_len": None},
        {"id": "llama-alias", "object": "model"},
        {"id": "sql", "object": "model", "parent": "llama"},
    ],
}


PERMISSION: dict[str, Any] = dict.fromkeys((f"allow_something_{number}" for number in range(8)), True)


def answer(*ids: object) -> bytes:
    return json.dumps({"data": [{"id": each_id} for each_id in ids]}).encode()


def test_base_models_and_adapters_are_served_in_order_each_once() -> None:
    assert read_models(json.dumps(VLLM).encode(), ModelsExtractorParameters()) == Listing(
        Outcome.FOUND, ("llama", "sql", "llama-alias"), adapters=1
    )
    assert read_models(answer(), ModelsExtractorParameters()) == Listing(Outcome.FOUND), "an empty list is a list"


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (b"", "not a list of models"),
        (b"# HELP vllm:num_requests_waiting\n", "not a list of models"),
        (b'{"data": [{"id": "a"}', "not a list of models"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"object": "list"}', "missing required field `data`"),
        (b'{"data": {"id": "a"}}', "Expected `array`, got `object`"),
        (b'{"data": null}', "Expected `array`, got `null`"),
        (b'{"data": ' + b"[" * 100_000, "not a list of models"),
        (b'{"data": [{"name": "a"}]}', "entry 0 was skipped: Object missing required field `id`"),
        (b'{"data": [{"id": "\xff"}]}', "entry 0 was skipped"),
        (answer(*(f"m{number}" for number in range(1001))), "1001 models are more than maxModels, 1000"),
        (b'{"data":[' + b"0," * 65_001 + b"0]}", "65001 commas are more than maxModels allows, 65000"),
        (b"{" + b'"data":[0,0],' * 40_000 + b'"data":[]}', "80000 commas are more than maxModels allows, 65000"),
        (answer(*(f"{number:0500}" for number in range(999))), "bytes; 131072 are allowed for a list of texts"),
        (answer("a", "b" * 513), "entry 1: 513 characters in the id; maxNameLength is 512"),
    ],
)
def test_an_answer_that_can_not_be_read_says_nothing_but_why(page: bytes, problem: str) -> None:
    listing = read_models(page, ModelsExtractorParameters())
    assert listing.outcome is Outcome.INVALID
    assert listing.ids == ()
    assert problem in listing.problem


@pytest.mark.parametrize("entry", [{"id": 7}, {"id": None}, {"id": ""}, {}, "a", None, {"id": "a", "parent": 7}])
def test_an_entry_that_names_nothing_costs_only_itself(entry: object) -> None:
    page = json.dumps({"data": [{"id": "a"}, entry, {"id": "b"}]}).encode()
    listing = read_models(page, ModelsExtractorParameters())
    assert listing.outcome is Outcome.FOUND
    assert listing.ids == ("a", "b")
    assert "entry 1 was skipped" in listing.problem


def test_the_limits_are_parameters() -> None:
    parameters = ModelsExtractorParameters(max_models=2, max_name_length=3)
    assert read_models(answer("abc", "b"), parameters).ids == ("abc", "b")
    assert read_models(answer("a", "b", "c"), parameters).outcome is Outcome.INVALID
    assert read_models(answer("abcd"), parameters).outcome is Outcome.INVALID


def test_an_answer_that_is_far_too_long_is_not_read_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "_LIST", None)
    parameters = ModelsExtractorParameters(max_models=3, max_name_length=100)
    listing = read_models(b" " * (parameters.max_bytes + 1), parameters)
    assert listing.outcome is Outcome.INVALID
    assert listing.problem == "68909 bytes are more than maxModels and maxNameLength allow, 68908"


def test_the_longest_list_of_a_vllm_is_read() -> None:
    entry = VLLM["data"][0] | {"permission": [{"id": "modelperm-" + "0" * 32, "organization": "*"} | PERMISSION]}
    page = json.dumps({"data": [entry | {"id": f"{number:0512}"} for number in range(250)]}).encode()
    assert len(read_models(page, ModelsExtractorParameters(max_models=250)).ids) == 250


def test_the_same_answer_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bytes] = []

    def reading(page: bytes, parameters: ModelsExtractorParameters) -> Listing:
        read.append(page)
        return Listing(Outcome.FOUND)

    monkeypatch.setattr(models, "read_models", reading)
    binding = ModelsExtractor("models").bind(ENDPOINT)
    for page in (answer("a"), answer("a"), answer("b"), answer("b"), answer("a")):
        binding.take(page)
    assert read == [answer("a"), answer("b"), answer("a")]


def test_a_list_that_can_not_be_read_leaves_the_last_one_to_age() -> None:
    binding, attributes = ModelsExtractor("models").bind(ENDPOINT), AttributeMap()
    binding.take(answer("llama", "sql"))
    assert binding.store(attributes, 1.0)
    binding.take(b"<html>")
    assert not binding.store(attributes, 2.0)
    sample = attributes.sample(SERVED_MODELS)
    assert sample is not None
    assert (sample.value, sample.at) == (("llama", "sql"), 1.0)
    assert [finding.outcome for finding in binding.findings()] == [Outcome.INVALID]
    assert "not a list of models" in binding.describe()["models_problem"]


def test_only_another_list_is_news_and_every_list_makes_it_younger() -> None:
    binding, attributes = ModelsExtractor("models").bind(ENDPOINT), AttributeMap()
    changes = []
    for at, page in enumerate([answer("a"), answer("a"), answer("a", "b"), answer("b", "a")]):
        binding.take(page)
        changes.append(binding.store(attributes, float(at)))
    assert changes == [True, False, True, True]
    sample = attributes.sample(SERVED_MODELS)
    assert sample is not None
    assert sample.at == 3.0


def test_what_is_known_of_a_list_is_for_the_debug_pages() -> None:
    binding = ModelsExtractor("models").bind(ENDPOINT)
    assert binding.findings()[0].outcome is Outcome.UNKNOWN
    assert binding.describe() == {}
    binding.take(json.dumps(VLLM).encode())
    assert binding.findings()[0].outcome is Outcome.FOUND
    assert binding.describe() == {"models": "3, 1 of them adapters"}
