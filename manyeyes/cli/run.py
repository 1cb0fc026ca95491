"""`manyeyes run`: train with the settings given, once or for every combination of a sweep."""

from manyeyes.config.run import run as main

__all__ = ["main"]
