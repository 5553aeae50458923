"""What a picker tells about itself: metrics, decisions with their reasons, state."""
