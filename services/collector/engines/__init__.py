"""What engines call their metrics, and whether that is enough."""
