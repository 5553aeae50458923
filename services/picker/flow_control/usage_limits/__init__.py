"""Usage limit policies, one a file."""
