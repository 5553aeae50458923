"""Several pickers behind one port: a supervisor, and the worker processes that it starts."""
