"""Deciders of disaggregated serving, one a file."""
