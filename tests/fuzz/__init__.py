"""Fuzzers. Each has a module that says what must hold of any input, a corpus, and a test that runs it for a moment."""
