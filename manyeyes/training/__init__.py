"""Runs: the training loop, its folder, checkpoints, events and progress."""
