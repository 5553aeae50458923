"""Fairness policies, one a file."""
