"""Configuration: what a person can set on the command line, and what is built from it."""
