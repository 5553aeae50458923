"""gRPC servers: thin loops around the stream handlers, and health. Nothing here knows what a request means."""
