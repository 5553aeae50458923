"""`pointsman demo`: the whole system on this machine under load, with its parts killed on the way, shown live."""
