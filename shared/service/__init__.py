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
