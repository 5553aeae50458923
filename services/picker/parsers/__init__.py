"""Parses request bodies: API, model, prompt. Only the fields that something needs are decoded."""
