"""`pointsman up`: everything on this machine, in front of the user's own model servers."""
