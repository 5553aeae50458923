"""What every process has: settings, logs, signals, drain, readiness, admin HTTP.

A tier's `app.py` has a settings struct, a `Service` subclass and a `main`:

    class CollectorSettings(CommonSettings, frozen=True, kw_only=True):
        \"\"\"Scrapes model servers and publishes their attributes.\"\"\"
        interval: Annotated[Duration, Meta(description="time between two scrapes of an endpoint")] = 0.1

    class CollectorService(Service):
        tier = "collector"

    def main(argv: Sequence[str]) -> int:
        return run(CollectorSettings, CollectorService, argv, "collector")
"""

from shared.service.process import Service, default_id, report, run, warn_of_variables
from shared.service.readiness import Readiness
from shared.service.settings import CommonSettings, describe, parse, read_text

__all__ = [
    "CommonSettings",
    "Readiness",
    "Service",
    "default_id",
    "describe",
    "parse",
    "read_text",
    "report",
    "run",
    "warn_of_variables",
]
