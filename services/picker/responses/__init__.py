"""What a picker reads of responses, and changes in them: token usage, and the name of a rewritten model."""
