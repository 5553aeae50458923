"""Admitters, one a file."""
