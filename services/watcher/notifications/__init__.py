"""Notification sources in the watcher: objects in, attributes of endpoints out. No I/O.

Where objects come from is the watcher's sources' business (`services.watcher.sources`); what extractors say of
endpoints goes out as frames of the watcher that leads.
"""
