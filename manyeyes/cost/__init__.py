"""What a run will take, before it is started: seconds, traffic, memory and disk."""
