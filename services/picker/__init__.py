"""The picker: answers Envoy's ext_proc from a local view of the pool.

`extproc` is the conversation, `requests` reads bodies, `director` decides, `scheduling` scores, `state` is what the
decision reads; all of it is plain synchronous code. `transport` and `app` are the rim.
"""
