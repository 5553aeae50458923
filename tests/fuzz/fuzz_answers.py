"""Fuzzes the reader of model servers' answers with atheris, as `tests.fuzz.fuzz_parsers` does those of requests."""

import sys

import atheris

with atheris.instrument_imports(include=["services.collector.http"]):
    from tests.fuzz.answers import check


def main() -> None:
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
