"""Plugins of the conformance suite of the Gateway API Inference Extension, one a file."""
