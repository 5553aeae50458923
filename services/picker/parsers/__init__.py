"""Reads request bodies: which API, which model, what text. Only the fields that something needs are decoded."""
