"""Fuzzers of everything that reads foreign bytes: `python -m tests.fuzz TARGET`, for longer `make fuzz`.

A target is a module of `tests.fuzz.targets` whose `check` says what must hold of any input. Its corpus is the folder of
its name in `corpus`; `test_targets.py` runs each for a moment with the other tests.
"""
