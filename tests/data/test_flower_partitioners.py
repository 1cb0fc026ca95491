"""The partitioners of flwr-datasets give the clients that the library itself gives for the same seed."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from manyeyes.core.registry import build
from manyeyes.data.partition import make_owners
from manyeyes.io.packages import optional_requirements

LABELS = np.random.default_rng(0).integers(0, 5, 400)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("DirichletPartitioner", {"num_partitions": 7, "alpha": 0.3}),
        ("PathologicalPartitioner", {"num_partitions": 5, "num_classes_per_partition": 2}),
        ("ShardPartitioner", {"num_partitions": 5, "num_shards_per_partition": 2}),
        ("IidPartitioner", {"num_partitions": 6}),
    ],
)
def test_clients_are_those_of_the_library(name: str, options: dict[str, Any]) -> None:
    library = pytest.importorskip("flwr_datasets.partitioner")
    import datasets

    kind = getattr(library, name)
    extra = {} if name == "IidPartitioner" else {"partition_by": "label", "seed": 3}
    own = kind(**extra, **options)
    own.dataset = datasets.Dataset.from_dict({"label": LABELS, "row": np.arange(len(LABELS))})
    owners = build("partitioner", {"name": f"flwr:{name}", **options})(LABELS, 3)
    for client in range(own.num_partitions):
        assert np.flatnonzero(owners == client).tolist() == sorted(own.load_partition(client)["row"][:])


def test_the_text_of_a_partition_has_its_options() -> None:
    pytest.importorskip("flwr_datasets.partitioner")
    named = build("partitioner", {"name": "flwr:DirichletPartitioner", "num_partitions": 7, "alpha": 0.3})(LABELS, 3)
    text = "flwr:DirichletPartitioner alpha=0.3"
    assert np.array_equal(make_owners(LABELS, text, 7, 0.1, 4, 3), named)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("DirichletPartitoner", {}, r"unknown \(did you mean 'DirichletPartitioner'\?\): choose"),
        ("IidPartitioner", {"alpha": 0.3}, r"flwr:IidPartitioner has no option 'alpha': it has num_partitions"),
    ],
)
def test_a_mistake_is_one_sentence(name: str, options: dict[str, Any], message: str) -> None:
    pytest.importorskip("flwr_datasets.partitioner")
    with pytest.raises(ValueError, match=message):
        build("partitioner", {"name": f"flwr:{name}", **options})


@pytest.mark.skipif(find_spec("flwr_datasets") is not None, reason="flwr-datasets is installed")
@pytest.mark.skipif("flwr_datasets" not in optional_requirements(), reason="manyeyes was installed before this extra")
def test_without_the_library_the_command_is_named() -> None:
    with pytest.raises(ValueError, match="flwr_datasets is not installed: run pip install 'flwr-datasets"):
        build("partitioner", {"name": "flwr:IidPartitioner"})
