"""`pointsman demo`: the whole system on this machine under load, while parts of it are killed."""
