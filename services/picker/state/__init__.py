"""What a decision reads: the endpoints, their attributes, the load in flight, where prefixes were placed.

Arrays, one element an endpoint, in the order of the current `Layout`. Plain synchronous code; time is passed in.
"""
