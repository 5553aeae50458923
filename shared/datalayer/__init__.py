"""Sources that send events, and their extractors.

Endpoint events (`endpoints`) are sent wherever a tier sees the set of endpoints, object events (`objects`) about
Kubernetes objects in the watcher. Extractors get changes only: an object missing from a full listing was deleted, and
an extractor that starts later gets everything as added.
"""
