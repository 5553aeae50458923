"""Whether the pool can take more, and who is turned away when it can't."""
