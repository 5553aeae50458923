"""What holds for all tests."""

import os

# Tests run gRPC servers and start processes. gRPC's handlers would start its threads again in every forked child,
# before it becomes nats-server or Envoy, and at times abort it. Read when grpc is imported: stands before everything.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# They start hundreds of our processes, each of which would compile all of its modules.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
