"""Filters, one a file."""
