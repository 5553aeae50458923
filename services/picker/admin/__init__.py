"""Metrics, decisions with their explanations, and state."""
