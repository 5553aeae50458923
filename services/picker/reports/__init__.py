"""What a picker reports: its state page, its status, its view, and the decisions that it would make."""
