"""What must hold of a configuration document: it is refused with problems in words, or loads alike each time, and a
picker and a collector can have its plugins.

An input is the document's text.
"""

import numpy as np

from services.picker.pipeline import build
from shared.config import Invalid, LoadedConfig, load
from shared.plugin import Registry, Tier

REGISTRY = Registry.installed()
MAX_PROBLEM = 2000
"""Characters."""


def check(data: bytes) -> None:
    """Raises AssertionError, or what the loader let out, for an input that shows a fault."""
    text = data.decode("utf-8", "replace")
    loaded = _load(text, experimental=True)
    strict = _load(text, experimental=False)
    if loaded is None:
        assert strict is None
        return
    assert strict is None or strict.revision == loaded.revision
    again = _load(text, experimental=True)
    assert again is not None
    assert str(again) == str(loaded)
    for warning in loaded.warnings:
        str(warning).encode()
    try:
        build(loaded, np.random.default_rng(1), lambda: 0.0)
        loaded.instances(Tier.COLLECTOR)
        loaded.instances(Tier.WATCHER)
    except Invalid as error:
        _check_words(error)


def _load(text: str, experimental: bool) -> LoadedConfig | None:
    try:
        return load(text, REGISTRY, "file", allow_experimental=experimental)
    except Invalid as error:
        _check_words(error)
    return None


def _check_words(error: Invalid) -> None:
    assert error.problems
    for problem in error.problems:
        assert 0 < len(problem.message) < MAX_PROBLEM, problem
    str(error).encode()
