"""Data producers."""
