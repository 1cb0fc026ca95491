"""`python -m benchmarks.rounds`: the same work on our engines and on others', each in its own process, in one table."""
