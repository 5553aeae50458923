"""What a collector says of itself over the bus."""

import time

from services.collector.scraper import Scraper
from shared.bus.frame_publisher import FramePublisher
from shared.bus.frame_sender import FrameSender
from shared.service.answers import SHOWN
from shared.service.status import CollectorStatus, seconds


def collector_status(
    endpoints: int, scraper: Scraper, sender: FrameSender, publisher: FramePublisher
) -> CollectorStatus:
    """Of the collector with this scraper; `endpoints` are those of the pool."""
    now = time.monotonic()
    down: list[str] = []
    oldest: float | None = None
    for id, scrape in scraper.endpoints.items():
        if any(not target.up for target in scrape.targets):
            down.append(id)
        for target in scrape.targets:
            if target.up and target.page_at is not None:
                oldest = max(oldest or 0.0, now - target.page_at)
    return CollectorStatus(
        endpoints=endpoints,
        assigned=len(scraper.endpoints),
        down=tuple(down[:SHOWN]),
        down_count=len(down),
        page_age=None if oldest is None else seconds(oldest),
        frames=sender.frames,
        frames_dropped=sender.dropped,
        frames_unacknowledged=publisher.unacknowledged,
    )
