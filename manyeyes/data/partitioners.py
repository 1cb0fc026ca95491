"""Partitioners: how the examples of a dataset are given to new clients.

A partitioner is called with the class of each example and a seed, and returns the client of each example, from 0 to
the number of clients minus 1; an example with -1 is left out.
"""

from manyeyes.core.population import Ints
from manyeyes.core.registry import component, option
from manyeyes.data import partition


@component("partitioner", "dirichlet")
class DirichletPartitioner:
    """Clients of equal size, whose class mix is drawn from a Dirichlet distribution (Hsu et al. 2020)."""

    num_clients: int = option(100, "new clients", minimum=1)
    alpha: float = option(0.1, "concentration of the class mix: small is more skewed", minimum=0)

    def __call__(self, labels: Ints, seed: int) -> Ints:
        return partition.dirichlet(labels, self.num_clients, self.alpha, seed)


@component("partitioner", "classes")
class ClassPartitioner:
    """Clients of a few classes each; every class is split equally among its clients (Arivazhagan et al. 2019)."""

    num_clients: int = option(10, "new clients", minimum=1)
    classes_per_client: int = option(4, "classes that each client has", minimum=1)

    def __call__(self, labels: Ints, seed: int) -> Ints:
        return partition.classes_per_client(labels, self.num_clients, self.classes_per_client, seed)


@component("partitioner", "iid")
class IIDPartitioner:
    """Clients of equal size, with random examples."""

    num_clients: int = option(100, "new clients", minimum=1)

    def __call__(self, labels: Ints, seed: int) -> Ints:
        return partition.iid(len(labels), self.num_clients, seed)
