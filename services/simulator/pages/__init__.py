"""The metrics pages of real engines, a module an engine: which families there are, with which labels and values."""
