"""Ordering policies, one a file."""
