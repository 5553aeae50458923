"""What a picker tells of itself: its state page, its status, its view, and the decisions that it would make."""
