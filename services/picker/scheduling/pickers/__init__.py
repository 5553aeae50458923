"""Pickers, one a file."""
