"""How populations and algorithms are shown."""

from __future__ import annotations

from dataclasses import replace

import manyeyes as me
from manyeyes.components import EpochBatching, Schedule
from manyeyes.core.notebook import html_table, short_repr
from manyeyes.core.population import Population


def test_a_population_is_one_line(population: Population) -> None:
    assert repr(population) == (
        "Population(images: 48 of 8 x 8, users: 8 with 6 images each (quartiles 6 and 6), classes: 3, "
        "splits: test 6, train 36, val 6)"
    )
    assert "synthetic images" in repr(replace(population, caveats=("synthetic images",)))
    assert "<td" in population._repr_html_()


def test_an_algorithm_has_its_slots_and_the_options_that_differ_from_the_defaults() -> None:
    assert repr(me.fedprox(mu=0.5, lr=0.1)) == (
        "Algorithm(sampler=UniformSampler(), batching=EpochBatching(), client_optimizer=SGD(lr=0.1), "
        "client_weighting=WeightByExamples(), server_optimizer=ServerSGD(), correction=ProximalTerm(mu=0.5))"
    )
    assert '<th style="text-align:left">correction</th>' in me.fedprox()._repr_html_()


def test_a_nested_component_is_shown_in_full() -> None:
    optimizer = me.fedavg(schedule=Schedule("cosine")).client_optimizer
    assert short_repr(optimizer) == "SGD(schedule=Schedule(kind='cosine'))"
    assert short_repr(EpochBatching(epochs=2)) == "EpochBatching(epochs=2)"


def test_text_in_a_table_is_escaped() -> None:
    assert "&lt;b&gt;" in html_table("title", {"name": "<b>"})
