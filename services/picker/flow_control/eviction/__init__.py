"""Eviction of running requests: which ones, how many, and how soon again."""
