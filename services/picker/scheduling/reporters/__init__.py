"""Plugins that report on responses, one a file."""
