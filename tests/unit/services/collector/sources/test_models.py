"""Where a models source asks, how often, and who reads the answer."""

from services.collector.extractors.models import ModelsExtractor
from services.collector.sources.models import ModelsParameters, ModelsSource
from shared.attributes import SERVED_MODELS, AttributeMap
from shared.model import Endpoint

ENDPOINT = Endpoint(id="default/a", name="a", address="10.0.0.1", port=8000)


def test_the_list_is_where_openai_has_it() -> None:
    assert ModelsSource("m").url(ENDPOINT) == "http://10.0.0.1:8000/v1/models"
    assert ModelsSource("m", ModelsParameters(path="/openai/models", port=9000)).url(ENDPOINT) == (
        "http://10.0.0.1:9000/openai/models"
    )
    where = Endpoint(id="default/a", name="a", address="10.0.0.1", port=8000, metrics_host="10.0.0.9:8002")
    assert ModelsSource("m").url(where) == "http://10.0.0.1:8000/v1/models", "a metrics page elsewhere moves nothing"


def test_it_is_asked_every_second_unless_told_otherwise() -> None:
    assert ModelsSource("m").interval == 1.0
    assert ModelsSource("m", ModelsParameters(interval=5.0)).interval == 5.0
    assert ModelsSource("m", ModelsParameters(interval=0.0)).interval is None


async def test_every_extractor_reads_the_answer() -> None:
    bindings = [ModelsExtractor(name).bind(ENDPOINT) for name in ("one", "two")]
    await ModelsSource("m").read(b'{"data": [{"id": "llama"}]}', bindings)
    for binding in bindings:
        attributes = AttributeMap()
        assert binding.store(attributes, 1.0)
        assert attributes.get(SERVED_MODELS) == ("llama",)
