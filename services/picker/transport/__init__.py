"""gRPC servers for ext_proc and health. They know nothing about requests."""
