"""Documents of all generations: what each comes to, and what is said of what it wrote otherwise.

Each is judged twice: with the types that are installed it names those that aren't, at their places, and nothing else;
with stand-ins for these it loads.
"""

import pytest

from shared.attributes import AttributeKey
from shared.config import Invalid, load
from shared.plugin import Registry
from tests.unit.shared.config.documents import DOCUMENTS, GROUP, Document
from tests.unit.shared.config.stand_ins import completed, missing

REGISTRY = Registry.installed()

every_document = pytest.mark.parametrize("document", DOCUMENTS.values(), ids=DOCUMENTS)


@every_document
def test_types_that_arent_installed_are_named_at_their_places_and_nothing_else_is_wrong(document: Document) -> None:
    found = {}
    try:
        load(document.text, REGISTRY)
    except Invalid as error:
        found = {problem.path: problem.message.split("'")[1] for problem in error.problems}
    assert found == missing(document.text, REGISTRY)


@every_document
def test_a_document_comes_to_what_it_says_with_what_it_leaves_out_added(document: Document) -> None:
    """Parameters reach the plugin that has them now, and only what is written the former way is warned of."""
    config = load(document.text, completed(document.text, REGISTRY))
    found = {each.name: [(member.plugin.name, member.weight) for member in each.members] for each in config.profiles}
    assert (found, config.profile_handler) == (document.members, document.handler)
    assert [str(warning) for warning in config.warnings] == [*[GROUP] * document.former, *document.warnings]
    assert {source.source: " ".join(source.extractors) for source in config.sources} == dict(document.sources)
    assert (config.parsers, config.saturation_detector) == (document.parsers, document.detector)
    for name, given in document.parameters.items():
        assert {field: getattr(config.plugins[name].parameters, field) for field in given} == dict(given)


def test_a_scorer_reads_the_metric_that_an_extractor_makes_and_is_told_where_none_does() -> None:
    text = DOCUMENTS["a metric of one's own that steers"].text
    key = AttributeKey("vllm:num_requests_swapped", "swapped", float)
    assert load(text, REGISTRY).inputs == {"calm": {"metricName": key}}
    with pytest.raises(Invalid, match=r"nothing makes 'vllm:num_requests_swapped'.* add a prometheus-metric extractor"):
        load(text.replace("vllm:num_requests_swapped", "other", 1), REGISTRY)
