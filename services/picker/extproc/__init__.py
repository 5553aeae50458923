"""The ext_proc conversation, sans-IO: the proxy's messages go in, the answers come out."""
