"""`make attack`: hostile clients, proxies, model servers, messages and files against a live system.

A module for each front, the well-behaved load beside them, and what must hold meanwhile and afterwards. Whoever is on
the bus is trusted with facts, so nothing here lies well: what the attackers say is malformed or can't be true.
"""
