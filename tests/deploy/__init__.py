"""What docs/deploy-compose.md and docs/kubernetes.md describe, for real: containers under constant load through Envoy.

`make deploy-test` runs it as root on Linux. It isn't part of `make test`, which only tests its parts.
"""
