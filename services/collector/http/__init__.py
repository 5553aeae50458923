"""Asking model servers over HTTP/1.1."""
