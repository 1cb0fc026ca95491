"""`manyeyes data embed`: compute the features of a run ahead of time."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from manyeyes.config.build import (
    build_algorithm,
    build_engine_options,
    build_population,
    build_preprocess,
    build_run_config,
    plain,
)
from manyeyes.config.compose import compose_config
from manyeyes.io.steps import announce, shows_progress
from manyeyes.metrics.base import NO_METRICS
from manyeyes.models.build import weights_input
from manyeyes.training.progress import show_progress
from manyeyes.training.setup import make_setup


def embed(settings: Sequence[str]) -> int:
    """Set up the run of these settings, which computes its features, and say where they are."""
    config = compose_config(settings)
    options = replace(build_engine_options(config), features="on")
    model = plain(config)["model"]
    if options.threads:
        torch.set_num_threads(options.threads)
    with show_progress("embedding", shows_progress()):
        announce(f"loading data={config.data.name}")
        setup = make_setup(
            build_population(config),
            model,
            build_algorithm(config),
            None,
            build_preprocess(config).for_weights(weights_input(model)),
            build_run_config(config),
            options,
            NO_METRICS,
        )
    for file in setup.feature_files:
        print(f"{file.folder}: {file.num_values:,} features of up to {file.num_rows:,} images")
    return 0
