"""Deciders of disaggregated serving."""
