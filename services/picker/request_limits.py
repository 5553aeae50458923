"""How much of a request or response a conversation keeps, as the settings say."""

from services.picker.extproc.events import Limits
from services.picker.settings import PickerSettings


def request_limits(settings: PickerSettings) -> Limits:
    """The limits of all conversations."""
    return Limits(
        request_body=settings.max_request_body,
        held_bodies=settings.max_held_bodies,
        header_bytes=settings.max_request_headers,
        header_count=settings.max_header_count,
        response_object=settings.max_response_object,
        model_name=settings.max_model_name,
        subset_entries=settings.max_subset_entries,
    )
