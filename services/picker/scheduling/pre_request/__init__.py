"""Pre-request plugins, one a file."""
