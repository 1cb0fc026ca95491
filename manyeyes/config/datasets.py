"""What `data=...` can choose: synthetic images, a prepared dataset, or one of the known datasets by name."""

from pathlib import Path
from typing import Annotated, Any

from manyeyes.core.population import Population
from manyeyes.core.registry import OPTIONS_ATTRIBUTE, Option, options_of, register
from manyeyes.data.registry import DATASETS
from manyeyes.data.store.reader import open_population
from manyeyes.data.synthetic.dataset import SyntheticImages, make_synthetic

TASK = Option("task", str, "single", "what is predicted: single, coarse, fine or rating")


@register("dataset", "synthetic", size=32, coarse=10, fine=100, alpha=1.0)
def load_synthetic(task: str = TASK.default, **options: Any) -> Population:
    """Synthetic images."""
    return make_synthetic(SyntheticImages(**options)).task(task)


setattr(load_synthetic, OPTIONS_ATTRIBUTE, lambda: (*options_of(SyntheticImages), TASK))


@register("dataset", "store")
def load_store(
    path: Annotated[str, "folder or HDF5 file of the prepared dataset"],
    task: Annotated[str, "which of its labels are predicted; empty: the first ones"] = "",
) -> Population:
    """A dataset that `manyeyes data prepare` made, or an HDF5 file of FLAIR."""
    return open_population(Path(path), task or None)


for name in DATASETS:
    register("dataset", name, path=f"data/{name}")(load_store)
