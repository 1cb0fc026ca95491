"""`python -m manyeyes.fedper` is the command `manyeyes fedper`."""
