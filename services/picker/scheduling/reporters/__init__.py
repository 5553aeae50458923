"""Plugins that report on responses."""
