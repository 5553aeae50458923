"""Notification sources in the watcher: objects in, attributes of endpoints out. No I/O."""
