"""What is on a metrics page, and what of it is read."""
