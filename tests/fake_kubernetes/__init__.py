"""A Kubernetes API for tests that need its faults: a model of the cluster, in memory and over HTTP."""
