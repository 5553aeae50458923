"""What the picker finds out about endpoints by itself, from the set that the watcher publishes. No I/O."""
