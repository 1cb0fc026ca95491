"""A dataset that takes a store's writer several chunks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manyeyes.core.population import MultiLabels, SingleLabels
from manyeyes.data.manifest import Files, Manifest
from tests.data.manifests import COUNT


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Examples of 60 users in disorder, with single and multiple labels; every 50th image is not there."""
    root = tmp_path_factory.mktemp("raw")
    names = [f"{number}.png" for number in range(COUNT)]
    for number, name in enumerate(names):
        if number % 50:
            Image.new("RGB", (8, 8), (number % 251,) * 3).save(root / name)
    chance = np.random.default_rng(0)
    image = chance.permutation(COUNT)
    return Manifest(
        dataset="painted",
        source=Files(root, names),
        image=image,
        users=np.char.mod("user%d", chance.integers(60, size=COUNT)),
        split=np.where(chance.random(COUNT) < 0.3, "test", "train"),
        labels={
            "single": SingleLabels(image % 7, tuple("abcdefg")),
            "multi": MultiLabels.from_lists([list(range(k % 4)) for k in image.tolist()], ("x", "y", "z")),
        },
        columns={"image_id": np.char.mod("id%d", image), "latitude": image / 7.0},
        notes={"licence": "none", "count": np.int64(COUNT), "root": Path("raw")},
    )
