"""Names of other libraries: each leads to an option that exists, and the nearest name is suggested otherwise."""

from __future__ import annotations

import pytest

from manyeyes.config.groups import setting_names
from manyeyes.core.registry import suggestion
from manyeyes.core.synonyms import SYNONYMS

SETTINGS = list(setting_names())


def test_every_synonym_leads_to_a_setting_and_is_none_itself() -> None:
    first_targets = {name: targets[0] for name, targets in SYNONYMS.items()}
    assert {name: target for name, target in first_targets.items() if target not in SETTINGS} == {}
    assert set(SYNONYMS) & set(SETTINGS) == set()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("algorithm.learning_rate", "algorithm.lr"),
        ("client_optimizer.learning_rate", "client_optimizer.lr"),
        ("learning_rate", "algorithm.lr"),
        ("batch_size", "algorithm.batch_size"),
        ("num_rounds", "rounds"),
        ("num-server-rounds", "rounds"),  # Flower
        ("central_num_iterations", "rounds"),  # pfl
        ("clients_per_round", "algorithm.cohort_size"),
        ("fraction_fit", "algorithm.cohort_size"),  # Flower
        ("proximal_mu", "algorithm.mu"),  # Flower
        ("clipping_bound", "privacy.clipping_norm"),  # pfl
        ("momentum", "algorithm.momentum"),
        ("ruonds", "rounds"),
    ],
)
def test_a_name_leads_to_the_setting_that_it_means(typed: str, meant: str) -> None:
    assert suggestion(typed, SETTINGS) == f" (did you mean {meant!r}?)"


def test_among_the_options_of_a_component_the_name_has_no_group() -> None:
    assert suggestion("learning_rate", ["cohort_size", "lr"]) == " (did you mean 'lr'?)"
    assert suggestion("clients_per_round", ["cohort_size", "lr"]) == " (did you mean 'cohort_size'?)"


def test_a_name_that_resembles_nothing_has_no_suggestion() -> None:
    assert suggestion("weather", SETTINGS) == ""
