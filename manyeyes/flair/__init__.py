"""`python -m manyeyes.flair` is the command `manyeyes flair`."""
