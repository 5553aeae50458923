"""The parts of the system as processes on this machine, for the demo and for tests that kill them."""
