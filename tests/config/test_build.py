"""From settings to what they describe, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg
from manyeyes.components import (
    SGD,
    Adam,
    AdaptiveServer,
    AllClients,
    Centralized,
    Ditto,
    EpochBatching,
    FedDynCorrection,
    FedNovaWeighting,
    FineTune,
    HeadLayers,
    ImportanceReweighting,
    MatchingLayers,
    MimeLiteMomentum,
    NormLayers,
    ProximalTerm,
    ScaffoldCorrection,
    Schedule,
    ServerSGD,
    SizeWeightedSampler,
    UniformSampler,
    VirtualClientBatching,
    WeightByExamples,
    WeightUniformly,
)
from manyeyes.config.build import (
    build_algorithm,
    build_model,
    build_population,
    build_preprocess,
    build_run_config,
    describe_settings,
    ignored_options,
    train_options,
)
from manyeyes.config.compose import compose_config
from manyeyes.core import registry
from manyeyes.core.algorithm import SLOTS, Algorithm
from manyeyes.core.population import Population
from manyeyes.data.preprocess import Preprocess
from manyeyes.engines.base import EngineOptions
from manyeyes.training.callbacks import build_all
from manyeyes.training.config import RunConfig
from manyeyes.training.description import describe_training

COUNTS, RATES, FRACTIONS = st.integers(1, 500), st.floats(1e-6, 10), st.floats(0, 0.999)
SCHEDULES = st.one_of(
    st.builds(Schedule, warmup=st.integers(0, 9), final=FRACTIONS, power=RATES),
    st.builds(
        Schedule, st.sampled_from(["polynomial", "cosine"]), st.integers(10, 99), st.integers(0, 9), FRACTIONS, RATES
    ),
)
ALGORITHMS = st.builds(
    Algorithm,
    sampler=st.one_of(
        st.builds(UniformSampler, COUNTS),
        st.builds(SizeWeightedSampler, COUNTS),
        st.just(AllClients()),
        st.just(Centralized()),
    ),
    batching=st.one_of(
        st.builds(EpochBatching, COUNTS, COUNTS, st.integers(0, 99), st.just(0)),
        st.builds(VirtualClientBatching, COUNTS, COUNTS),
    ),
    client_optimizer=st.one_of(
        st.builds(SGD, RATES, FRACTIONS, RATES, RATES, st.booleans(), SCHEDULES),
        st.builds(Adam, RATES, FRACTIONS, FRACTIONS, RATES, RATES, RATES, st.booleans(), SCHEDULES),
    ),
    client_weighting=st.sampled_from([WeightByExamples(), WeightUniformly(), FedNovaWeighting()]),
    server_optimizer=st.one_of(
        st.builds(ServerSGD, RATES, FRACTIONS, SCHEDULES),
        st.builds(
            AdaptiveServer,
            st.sampled_from(["adam", "yogi"]),
            RATES,
            FRACTIONS,
            FRACTIONS,
            RATES,
            st.booleans(),
            SCHEDULES,
        ),
        st.builds(AdaptiveServer, st.just("adagrad"), RATES, FRACTIONS, FRACTIONS, RATES, st.just(False), SCHEDULES),
    ),
    example_weighting=st.sampled_from([None, ImportanceReweighting(), ImportanceReweighting((0.25, 0.75))]),
    correction=st.one_of(
        st.sampled_from([None, ScaffoldCorrection()]),
        st.builds(ProximalTerm, RATES),
        st.builds(MimeLiteMomentum, FRACTIONS),
        st.builds(FedDynCorrection, RATES),
    ),
    personal_layers=st.sampled_from([None, MatchingLayers(("fc.*",)), HeadLayers(3), NormLayers()]),
    personal_model=st.one_of(st.none(), st.builds(Ditto, RATES)),
    adaptation=st.one_of(st.none(), st.builds(FineTune, COUNTS)),
)


def describe(config: Any) -> dict[str, Any]:
    """Return the content of config.yaml of a run with these settings."""
    arguments = "lenet", build_preprocess(config), build_run_config(config), EngineOptions()
    return describe_training(build_algorithm(config), *arguments, metadata=describe_settings(config))


FAST = ("fedavg", "fedvc", "scaffold", "fedper")
ALGORITHM_NAMES = [pytest.param(name, marks=[] if name in FAST else pytest.mark.slow) for name in NAMED_ALGORITHMS]


@pytest.mark.slow
@pytest.mark.parametrize("name", ALGORITHM_NAMES)
def test_a_named_algorithm_is_built_from_its_settings(name: str) -> None:
    assert build_algorithm(compose_config([f"algorithm={name}"])) == NAMED_ALGORITHMS[name]()


@pytest.mark.fast_cases("fedavg", "fedper", "fedadam")
@pytest.mark.parametrize("name", ALGORITHM_NAMES)
def test_the_description_in_a_run_folder_builds_the_same_algorithm(name: str) -> None:
    overrides = [f"algorithm={name}", "rounds=70"]
    if name != "centralized":
        overrides.append("client_optimizer=adam")
    config = compose_config(overrides)
    algorithm = build_algorithm(config)
    assert build_algorithm(describe(config)) == algorithm


@settings(max_examples=100, deadline=None, derandomize=True)
@given(ALGORITHMS)
def test_any_algorithm_is_built_from_the_description_of_its_components(algorithm: Algorithm) -> None:
    components = {slot: getattr(algorithm, slot) for slot in SLOTS}
    description = {
        slot: None if value is None else registry.describe(slot, value) for slot, value in components.items()
    }
    assert build_algorithm({**description, "rounds": 100, "sources": {}}) == algorithm


@pytest.mark.slow
def test_a_schedule_without_a_length_is_described_without_one() -> None:
    config = compose_config(["algorithm.schedule.kind=cosine", "rounds=70"])
    assert build_algorithm(config).client_optimizer == SGD(0.01, schedule=Schedule("cosine"))
    assert describe(config)["client_optimizer"]["schedule"]["rounds"] == 0
    server = compose_config(["server_optimizer=adam", "server_optimizer.schedule.kind=polynomial", "rounds=30"])
    assert build_algorithm(server).server_optimizer == AdaptiveServer(schedule=Schedule("polynomial"))


def test_a_slot_replaces_the_component_of_the_algorithm() -> None:
    config = compose_config(["server_optimizer=adam", "server_optimizer.lr=0.5", "correction=feddyn"])
    assert build_algorithm(config) == replace(
        fedavg(), server_optimizer=AdaptiveServer(lr=0.5), correction=FedDynCorrection()
    )


def test_none_removes_the_component_of_the_algorithm() -> None:
    assert build_algorithm(compose_config(["algorithm=fedprox", "correction=none"])) == fedavg()


def test_one_changed_component_changes_one_slot_of_the_description() -> None:
    before = describe(compose_config([]))
    after = describe(compose_config(["sampler=uniform", "sampler.cohort_size=33"]))
    changed = {name: value for name, value in after.items() if value != before[name]}
    assert changed == {"sampler": {"name": "uniform", "cohort_size": 33}}


def test_preprocessing_takes_every_setting() -> None:
    overrides = ["crop=6", "pad=1", "flip_horizontal=true", "flip_vertical=true", "scale=[0.1,0.9]", "ratio=[0.5,2]"]
    overrides += ["mean=[0.1,0.2,0.3]", "std=[0.4,0.5,0.6]"]
    config = compose_config([f"preprocess.{override}" for override in overrides])
    expected = Preprocess(6, 1, True, True, (0.1, 0.9), (0.5, 2.0), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert build_preprocess(config) == expected


def test_defaults_are_those_of_the_declarations() -> None:
    config = compose_config([])
    assert build_preprocess(config) == Preprocess(crop=0, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    assert build_run_config(config) == RunConfig()


@pytest.mark.slow
@pytest.mark.parametrize(("task", "classes"), [("single", 3), ("coarse", 3), ("fine", 6), ("rating", 5)])
def test_synthetic_images_have_the_labels_of_the_task(task: str, classes: int) -> None:
    settings = ("users=3", "images_per_user=2", "coarse=3", "fine=6", f"task={task}")
    assert len(build_population(compose_config([f"data.{setting}" for setting in settings])).classes) == classes


@pytest.mark.slow
@pytest.mark.parametrize(("partitioner", "num_classes"), [("classes", {2}), ("iid", {3}), ("dirichlet", {1, 2, 3})])
def test_a_partitioner_gives_the_examples_to_new_clients(partitioner: str, num_classes: set[int]) -> None:
    data = ("data.users=6", "data.images_per_user=20", "data.coarse=3", "data.fine=6")
    options = ("classes_per_client=2",) if partitioner == "classes" else ()
    settings = (f"partitioner={partitioner}", "partitioner.num_clients=4")
    overrides = [*data, *settings, *(f"partitioner.{option}" for option in options)]
    first, again, different = (build_population(compose_config([*overrides, f"seed={seed}"])) for seed in (1, 1, 2))
    assert len(first.user_ids) == 4
    assert len(first) == 120
    assert set((first.histograms() > 0).sum(1).tolist()) <= num_classes
    assert np.array_equal(first.image_indices, again.image_indices)
    assert not np.array_equal(first.image_indices, different.image_indices)
    assert set(np.unique(np.asarray(first.columns["split"]))) == {"train", "test"}


@pytest.mark.parametrize(("crop", "num_pixels"), [(0, 8), (6, 6)])
def test_a_model_fits_the_images_after_preprocessing(population: Population, crop: int, num_pixels: int) -> None:
    model: Any = build_model(compose_config(["model=linear", f"preprocess.crop={crop}"]), population)
    assert tuple(model.fc.weight.shape) == (3, 3 * num_pixels**2)


@pytest.mark.slow
def test_the_initial_weights_follow_from_the_seed(population: Population) -> None:
    first, again, different = (
        build_model(compose_config(["model=linear", f"seed={seed}"]), population).state_dict()["fc.weight"]
        for seed in (0, 0, 1)
    )
    assert first.equal(again)
    assert not first.equal(different)


def test_callbacks_metrics_and_trackers_are_built_with_their_options() -> None:
    names = ["callbacks=[early_stopping]", "metrics=[top_k,ece]", "trackers=[tensorboard]"]
    options = train_options(
        compose_config([*names, "callbacks.early_stopping.patience=7", "metrics.top_k.k=2", "engine=reference"])
    )
    assert [callback.patience for callback in build_all("callback", options["callbacks"])] == [7]
    assert options["metrics"] == [{"name": "top_k", "k": 2}, {"name": "ece", "bins": 15}]
    assert options["trackers"] == [{"name": "tensorboard"}]
    assert (options["engine"], options["workers"]) == ("reference", 0)


def test_an_option_of_the_algorithm_that_only_sets_a_replaced_slot_is_found() -> None:
    config = compose_config(["algorithm=fedvc", "sampler=uniform", "algorithm.cohort_size=5", "algorithm.lr=0.1"])
    assert ignored_options(config) == {"cohort_size": "sampler"}
