"""Templates of the engines' metrics pages: Prometheus text with names in place of values (see `exposition`)."""
