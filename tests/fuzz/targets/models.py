"""What must hold of lists of models, whatever a model server answers: it is read within its limits, or said to be none.

An input is the body of an answer to `/v1/models`.
"""

import json

from services.collector.extractors.models import ModelListBinding, ModelsExtractorParameters, read_models
from services.collector.page.selection import Outcome
from shared.attributes import SERVED_MODELS, AttributeMap
from shared.bus.codec import decode, encode
from shared.bus.frame_columns import pack
from shared.bus.messages import Frame

PARAMETERS = ModelsExtractorParameters(max_models=5, max_name_length=40)
MAX_PROBLEM = 500
"""Characters."""


def check(data: bytes) -> None:
    """Raises AssertionError, or what the extractor let out, for an input that shows a fault."""
    listing = read_models(data, PARAMETERS)
    assert len(listing.problem) < MAX_PROBLEM
    binding, attributes = ModelListBinding(PARAMETERS), AttributeMap()
    binding.take(data)
    stored = binding.store(attributes, 1.0)
    assert stored is (listing.outcome is Outcome.FOUND)
    json.dumps([binding.describe(), *(finding.outcome for finding in binding.findings())]).encode()
    if not stored:
        assert listing.problem
        return
    assert len(listing.ids) <= PARAMETERS.max_models
    assert len(set(listing.ids)) == len(listing.ids)
    assert all(0 < len(id) <= PARAMETERS.max_name_length for id in listing.ids)
    content = pack([("a", attributes)], 1.0)
    frame = Frame(sender="c", sent=1.0, sequence=1, ids=content.ids, ages=content.ages, objects=content.objects)
    assert decode(Frame, encode(frame)).objects == {SERVED_MODELS.wire: [list(listing.ids)]}
