"""What a collector can be told."""

from typing import Annotated

from msgspec import Meta

from shared.quantities import Duration, PositiveDuration, Size
from shared.service import CommonSettings


class CollectorSettings(CommonSettings, frozen=True, kw_only=True):
    """Scrapes the model servers that are its share, and publishes what it finds as attributes of the endpoints."""

    config_file: Annotated[
        str, Meta(description="an EndpointPickerConfig; without it the one that the watcher publishes, or the default")
    ] = ""
    allow_experimental_plugins: Annotated[bool, Meta(description="load plugin types of alpha stability")] = False
    interval: Annotated[
        PositiveDuration,
        Meta(description="time between two scrapes of an endpoint, where the data source doesn't say another"),
    ] = 0.1
    scrape_timeout: Annotated[PositiveDuration, Meta(description="how long a scrape may take, from first to last")] = (
        1.0
    )
    page_limit: Annotated[Size, Meta(description="bytes of a page; a larger one is refused")] = 16 * 2**20
    backoff_limit: Annotated[
        Duration,
        Meta(description="longest time between two attempts at an endpoint that keeps failing, if not the interval"),
    ] = 1.0
    gather: Annotated[
        Duration, Meta(description="how long a change waits for others, to travel in one frame with them")
    ] = 0.002
    refresh: Annotated[
        PositiveDuration, Meta(description="values that didn't change are confirmed this often while they are scraped")
    ] = 0.1
    heartbeat: Annotated[PositiveDuration, Meta(description="everything is published at least this often")] = 0.5
