"""The processes. A service never imports another service: what two of them agree on is in `shared`."""
