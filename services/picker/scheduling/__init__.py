"""Which endpoint takes a request: profiles of filters, scorers and a picker, one plugin a file.

A scheduler runs the profiles that its profile handler asks for; a profile narrows the candidates with its filters, adds
up its scorers' weighted scores, and lets its picker choose. All of it works on arrays, an element an endpoint.
"""
