"""Saturation detectors: they decide whether the pool sheds requests."""
