"""From settings to what they describe, and back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manyeyes.config.schema import AlgorithmConfig, AugmentConfig, ModelConfig, WorldConfig
from omegaconf import OmegaConf

from manyeyes.algorithms import NAMED_ALGORITHMS
from manyeyes.components import (
    SGD,
    Adam,
    AdaptiveServer,
    AllClients,
    Centralized,
    Ditto,
    EpochBatching,
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
from manyeyes.config.build import build_algorithm, build_augment, build_model, build_population, describe_algorithm
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.population import Population
from manyeyes.data.preprocess import Preprocess

COUNTS, RATES, SHARES = st.integers(1, 500), st.floats(1e-6, 10), st.floats(0, 0.999)
SCHEDULES = st.one_of(
    st.builds(Schedule, warmup=st.integers(0, 9), final=SHARES, power=RATES),
    st.builds(
        Schedule, st.sampled_from(["polynomial", "cosine"]), st.integers(10, 99), st.integers(0, 9), SHARES, RATES
    ),
)
MIXES = st.builds(
    Algorithm,
    cohort=st.one_of(
        st.builds(UniformSampler, COUNTS),
        st.builds(SizeWeightedSampler, COUNTS),
        st.just(AllClients()),
        st.just(Centralized()),
    ),
    draw=st.one_of(
        st.builds(EpochBatching, COUNTS, COUNTS, st.integers(0, 99), st.integers(0, 9)),
        st.builds(VirtualClientBatching, COUNTS, COUNTS),
    ),
    local=st.one_of(
        st.builds(SGD, RATES, SHARES, RATES, RATES, st.booleans(), SCHEDULES),
        st.builds(Adam, RATES, st.tuples(SHARES, SHARES), RATES, RATES, RATES, st.booleans(), SCHEDULES),
    ),
    weigh=st.sampled_from([WeightByExamples(), WeightUniformly(), FedNovaWeighting()]),
    server=st.one_of(
        st.builds(ServerSGD, RATES, SHARES, SCHEDULES),
        st.builds(
            AdaptiveServer, st.sampled_from(["adam", "yogi"]), RATES, SHARES, SHARES, RATES, st.booleans(), SCHEDULES
        ),
        st.builds(AdaptiveServer, st.just("adagrad"), RATES, SHARES, SHARES, RATES, st.just(False), SCHEDULES),
    ),
    reweigh=st.sampled_from([None, ImportanceReweighting(), ImportanceReweighting((0.25, 0.75))]),
    correct=st.one_of(
        st.sampled_from([None, ScaffoldCorrection()]),
        st.builds(ProximalTerm, RATES),
        st.builds(MimeLiteMomentum, SHARES),
    ),
    personal=st.sampled_from(
        [None, MatchingLayers(("fc.*",)), MatchingLayers(("conv?", "*.bias")), HeadLayers(3), NormLayers()]
    ),
    beside=st.one_of(st.none(), st.builds(Ditto, RATES)),
    adapt=st.one_of(st.none(), st.builds(FineTune, COUNTS)),
)


@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_a_named_algorithm_is_what_its_settings_build(name: str) -> None:
    assert build_algorithm(describe_algorithm(name, NAMED_ALGORITHMS[name]()), rounds=100) == NAMED_ALGORITHMS[name]()


@settings(max_examples=100, deadline=None, derandomize=True)
@given(MIXES)
def test_any_mix_is_what_its_settings_build(mix: Algorithm) -> None:
    assert build_algorithm(describe_algorithm("mix", mix), rounds=100) == mix


def test_a_schedule_without_a_length_takes_that_of_the_run() -> None:
    config = AlgorithmConfig()
    config.schedule.kind = "cosine"
    assert build_algorithm(config, rounds=70).client_optimizer == SGD(0.01, schedule=Schedule("cosine", 70))


@pytest.mark.parametrize("field", ["select", "optimizer", "weigh", "correction", "personal", "server"])
def test_an_unknown_word_is_refused_with_the_known_ones(field: str) -> None:
    config = AlgorithmConfig()
    setattr(config, field, "best")
    with pytest.raises(ValueError, match=f"^algorithm.{field} is 'best': choose [a-z_]+, [a-z_, ]+$"):
        build_algorithm(config, rounds=10)


def test_augment_takes_every_setting() -> None:
    assert build_augment(AugmentConfig(6, 1, True, False)) == Preprocess(6, 1, flip_horizontal=True)
    config = AugmentConfig(0, 0, False, True, 0.1, 0.9, 0.5, 2.0, [0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    expected = Preprocess(0, 0, False, True, (0.1, 0.9), (0.5, 2.0), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert build_augment(config) == expected


def test_augment_says_nothing_of_its_own_where_the_settings_do_not() -> None:
    assert build_augment(AugmentConfig()) == Preprocess()


@pytest.mark.parametrize(("task", "classes"), [("single", 3), ("coarse", 3), ("fine", 6), ("rating", 5)])
def test_a_world_has_the_asked_labels(task: str, classes: int) -> None:
    config = WorldConfig(users=3, photos=2, coarse=3, fine=6, task=task)
    assert len(build_population(OmegaConf.structured(config)).classes) == classes


@pytest.mark.parametrize(("crop", "inputs"), [(0, 8), (6, 6)])
def test_a_model_fits_the_images_that_training_sees(people: Population, crop: int, inputs: int) -> None:
    model: Any = build_model(ModelConfig(name="linear"), people, Preprocess(crop=crop), seed=0)
    assert tuple(model.fc.weight.shape) == (3, 3 * inputs**2)


def test_a_model_follows_the_seed(people: Population) -> None:
    weights = [build_model(ModelConfig(name="linear"), people, Preprocess(), seed).state_dict() for seed in (0, 0, 1)]
    assert weights[0]["fc.weight"].equal(weights[1]["fc.weight"])
    assert not weights[0]["fc.weight"].equal(weights[2]["fc.weight"])


def test_one_changed_slot_changes_one_setting() -> None:
    before = vars(describe_algorithm("a", NAMED_ALGORITHMS["fedavg"]()))
    after = vars(describe_algorithm("a", replace(NAMED_ALGORITHMS["fedavg"](), sampler=UniformSampler(33))))
    assert {name: value for name, value in after.items() if value != before[name]} == {"cohort": 33}
