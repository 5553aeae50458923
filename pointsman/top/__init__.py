"""`pointsman top`: a pool in a terminal, from what is on the bus. `pointsman up` and the demo show the same."""
