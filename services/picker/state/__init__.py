"""The state that a decision reads: endpoints, their attributes, the load in flight, placed prefixes.

Arrays, one element an endpoint, in the order of the current `Layout`. Plain synchronous code; time is passed in.
"""
