"""The pool as an observer of the bus sees it: endpoints, members of all tiers, and queues, as rows to show.

`PoolReader` reads one pool's facts, frames, loads and heartbeats, and publishes nothing. `PoolView` is its state,
without I/O and clock.
"""
