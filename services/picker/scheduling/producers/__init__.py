"""Data producers, one a file."""
