"""Reads the token usage of responses, and puts back the name of a rewritten model."""
