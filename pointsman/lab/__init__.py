"""`pointsman lab`: what profiles and numbers of pickers come to on simulated model servers, in simulated time."""
