"""What a picker reads from the bus into its view, and what it publishes: its load in flight and prefix placements."""
