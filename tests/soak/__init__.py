"""The times that the design promises, measured by the tests that let the faults happen."""
