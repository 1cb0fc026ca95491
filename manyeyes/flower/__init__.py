"""The same algorithms on real, separate clients: a Flower app whose grid is one more engine."""
