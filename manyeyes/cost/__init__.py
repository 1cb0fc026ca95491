"""Capacity: what a run will take in seconds, bytes, memory and disk, before it is started."""
