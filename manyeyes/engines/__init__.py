"""Engines: a plan in, the sum of the clients' updates out."""
