"""The system's parts as processes on this machine, for the demo and for the tests that kill them."""
