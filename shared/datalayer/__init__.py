"""Sources that send events instead of being asked, and the extractors that hear them.

Two kinds: endpoint events (`endpoints`: an endpoint was added, changed or removed, heard wherever a tier sees the set)
and object events (`objects`: a Kubernetes object was, heard in the watcher). An extractor hears changes only: what a
full listing no longer has is told as deleted, and one that begins late, after a configuration changed, is told of
everything as added.
"""
