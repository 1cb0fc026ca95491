"""A manifest of several chunks of a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manyeyes.core.population import MultiLabels, SingleLabels
from manyeyes.data.manifest import Files, Manifest
from tests.data.manifests import NUM_IMAGES


@pytest.fixture(scope="session")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Return shuffled examples of 60 users with single and multiple labels; every 50th image does not exist."""
    root = tmp_path_factory.mktemp("raw")
    names = [f"{index}.png" for index in range(NUM_IMAGES)]
    for index, name in enumerate(names):
        if index % 50:
            Image.new("RGB", (8, 8), (index % 251,) * 3).save(root / name)
    rng = np.random.default_rng(0)
    image = rng.permutation(NUM_IMAGES)
    return Manifest(
        dataset="painted",
        source=Files(root, names),
        image=image,
        users=np.char.mod("user%d", rng.integers(60, size=NUM_IMAGES)),
        split=np.where(rng.random(NUM_IMAGES) < 0.3, "test", "train"),
        labels={
            "single": SingleLabels(image % 7, tuple("abcdefg")),
            "multi": MultiLabels.from_lists([list(range(k % 4)) for k in image.tolist()], ("x", "y", "z")),
        },
        columns={"image_id": np.char.mod("id%d", image), "latitude": image / 7.0},
        notes={"licence": "none", "count": np.int64(NUM_IMAGES), "root": Path("raw")},
    )
