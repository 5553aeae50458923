"""gRPC servers: thin loops around the exchanges, and health. Nothing here knows what a request means."""
