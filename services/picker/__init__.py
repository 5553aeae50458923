"""The picker: answers Envoy's ext_proc from a local view of the pool.

`extproc` is the conversation with the proxy, `parsers` reads request bodies, `director` decides, `scheduling` scores,
and `state` holds what a decision reads. All of it is plain synchronous code. `transport` and `app` do the I/O.
"""
