"""The ext_proc conversation, sans-IO: what a proxy sends goes in, what it must be answered comes out."""
