"""Pickers."""
