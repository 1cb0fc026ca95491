"""Keywords of the public functions: an editor and a type checker know each, and a wrong one is answered.

The comments `type: ignore` are checked: mypy would report one that ignores nothing.
"""

from __future__ import annotations

import inspect
from typing import get_args, get_type_hints

import pytest

import manyeyes as me
from manyeyes.algorithms import NAMED_ALGORITHMS
from manyeyes.components import SGD
from manyeyes.core.population import Population
from manyeyes.core.registry import options_of
from manyeyes.data.preprocess import Preprocess
from manyeyes.training.config import TRAIN_OPTIONS, TrainOptions


@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_the_signature_of_an_algorithm_shows_every_option_with_its_default(name: str) -> None:
    make = NAMED_ALGORITHMS[name]
    parameters = inspect.signature(make).parameters
    assert [*parameters] == [option.name for option in options_of(make)]
    for option in options_of(make):
        assert parameters[option.name].default == option.default


@pytest.mark.parametrize("name", NAMED_ALGORITHMS)
def test_the_declared_types_of_an_algorithms_options_are_those_of_its_components(name: str) -> None:
    make = inspect.unwrap(NAMED_ALGORITHMS[name])
    hints = get_type_hints(make)
    parameters = inspect.signature(make).parameters.values()
    typed = {parameter.name: hints[parameter.name] for parameter in parameters}
    for keywords in [p.name for p in parameters if p.kind is p.VAR_KEYWORD]:
        (typed_dict,) = get_args(typed.pop(keywords))
        typed |= get_type_hints(typed_dict)
    assert typed == {option.name: option.type for option in options_of(NAMED_ALGORITHMS[name])}


def test_the_declared_types_of_the_options_of_train_are_those_of_its_settings() -> None:
    assert get_type_hints(TrainOptions) == {option.name: option.type for option in TRAIN_OPTIONS}
    assert set(get_type_hints(TrainOptions)) <= inspect.signature(me.train).parameters.keys()


def test_a_mistyped_option_of_an_algorithm_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        TypeError, match=r"fedavg\(\) has no option 'learning_rate' \(did you mean 'lr'\?\): it has coh"
    ):
        me.fedavg(learning_rate=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"fedprox\(\) has no option 'num_epochs' \(did you mean 'epochs'\?\)"):
        me.fedprox(num_epochs=2)  # type: ignore[call-arg]


def test_a_mistyped_option_of_a_component_is_answered_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"SGD\(\) has no option 'learning_rate' \(did you mean 'lr'\?\)"):
        SGD(learning_rate=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"Preprocess\(\) has no option 'corp' \(did you mean 'crop'\?\)"):
        Preprocess(corp=24)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"SyntheticImages\(\) has no option 'num_users' \(did you mean 'users'\?\)"):
        me.SyntheticImages(num_users=3)  # type: ignore[call-arg]


def test_a_mistyped_option_of_train_is_answered_with_the_nearest(population: Population) -> None:
    with pytest.raises(ValueError, match=r"Unknown option 'num_rounds' of train \(did you mean 'rounds'\?\)"):
        me.train(population, "linear", me.fedavg(), num_rounds=3)  # type: ignore[call-arg]


def test_a_wrong_type_is_seen_by_a_type_checker() -> None:
    with pytest.raises(ValueError, match="batch_size is '8'"):
        me.fedavgm(batch_size="8")  # type: ignore[arg-type]
