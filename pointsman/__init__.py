"""The command line, and what it needs beyond the services: checking documents, the local stack, the demo."""
