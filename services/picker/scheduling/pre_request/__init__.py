"""Pre-request plugins."""
