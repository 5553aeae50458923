"""Traces: one OpenTelemetry span per request, made from its decision. Loaded only with `--tracing`."""
