"""Federated training on real, separate clients: a Flower app whose engine sends the plan of a round to its clients."""
