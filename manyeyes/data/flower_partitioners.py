"""The partitioners of `flwr-datasets` on the classes of any dataset, with its results for the same seed."""

import inspect
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import numpy as np

from manyeyes.core.population import Ints
from manyeyes.core.registry import register_library, suggestion
from manyeyes.io.packages import import_optional
from manyeyes.io.parsing import first_line

FLOWER_PREFIX = "flwr:"
COLUMN = "label"


@register_library("partitioner", FLOWER_PREFIX.removesuffix(":"))
def flower_partitioner(
    name: str,
    num_partitions: Annotated[int | None, "new clients"] = None,
    alpha: Annotated[float | None, "concentration of a Dirichlet distribution"] = None,
    min_partition_size: Annotated[int | None, "fewest examples of a client"] = None,
    self_balancing: Annotated[bool | None, "whether clients with many examples get no more of them"] = None,
    num_classes_per_partition: Annotated[int | None, "classes of each client"] = None,
    class_assignment_mode: Annotated[str | None, "random, deterministic or first-deterministic"] = None,
    num_shards_per_partition: Annotated[int | None, "shards of each client"] = None,
    shard_size: Annotated[int | None, "examples of a shard"] = None,
    shuffle: Annotated[bool | None, "whether the examples of a client are shuffled"] = None,
) -> Callable[[Ints, int], Ints]:
    """A partitioner of flwr-datasets, such as flwr:DirichletPartitioner; what is not set is as it has it."""
    options = {key: value for key, value in locals().items() if key != "name" and value is not None}
    kind = _find(name, options)

    def partition(labels: Ints, seed: int) -> Ints:
        """Return the client of each example, or -1."""
        common = {"partition_by": COLUMN, "seed": seed}
        fixed = {key: value for key, value in common.items() if key in inspect.signature(kind).parameters}
        datasets = import_optional("datasets")
        try:
            partitioner: Any = kind(**fixed, **options)
            partitioner.dataset = datasets.Dataset.from_dict({COLUMN: labels, "index": np.arange(len(labels))})
            rows = [partitioner.load_partition(client)["index"] for client in range(partitioner.num_partitions)]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{FLOWER_PREFIX}{name} cannot divide the examples: {first_line(error)}") from error
        owners = np.full(len(labels), -1)
        for client, examples in enumerate(rows):
            owners[np.asarray(examples[:], np.int64)] = client
        return owners

    return partition


def _find(name: str, options: Iterable[str]) -> Callable[..., Any]:
    """Return the class of a partitioner, which has the options that are given."""
    library = import_optional("flwr_datasets.partitioner")
    if name not in library.__all__:
        known = ", ".join(library.__all__)
        raise ValueError(
            f"partitioner={FLOWER_PREFIX}{name} is unknown{suggestion(name, library.__all__)}: choose {known}"
        )
    kind: Callable[..., Any] = getattr(library, name)
    known_options = [*inspect.signature(kind).parameters]
    for option in options:
        if option not in known_options:
            raise ValueError(f"{FLOWER_PREFIX}{name} has no option {option!r}: it has {', '.join(known_options)}")
    return kind
