"""A smaller run says how much smaller, keeps its ratios, and trains."""

from __future__ import annotations

import pytest

from manyeyes.papers import ITEMS
from manyeyes.papers.exhibit import RunRecipe
from manyeyes.papers.fedper import cifar_run as fedper_run
from manyeyes.papers.fedper import flickr_run
from manyeyes.papers.flair import run as flair_run
from manyeyes.papers.hsu2020_runs import cifar_run, landmarks, species
from manyeyes.papers.metric import AfterRounds, Relative, scaled
from manyeyes.papers.scaling import WORLDS, cut, on_synthetic_data, scale


def number(run: RunRecipe, name: str) -> int:
    return int(run.setting(name) or 0)


def test_rounds_and_clients_shrink_by_the_factor_and_pixels_by_its_root() -> None:
    small = scale(flair_run("FL-F-17"), 0.25)
    assert [number(small, name) for name in ("rounds", "evaluate_every", "algorithm.cohort")] == [1250, 25, 50]
    assert number(small, "augment.crop") == 112
    assert small.store is not None
    assert small.store.path == small.setting("data.path") == "data/flair_128px"
    assert small.store.options == ("flair", "--raw", "raw/flair", "--size", "128")


def test_a_scaled_run_says_what_was_shrunk() -> None:
    (sentence,) = scale(flair_run("FL-F-17"), 0.25).changes
    assert sentence == "Scaled by 0.25: rounds 5000 to 1250, clients a round 200 to 50, pixels a side 224 to 112."


def test_a_factor_of_one_changes_nothing() -> None:
    assert scale(flair_run("FL-F-17"), 1) == flair_run("FL-F-17")


@pytest.mark.parametrize("factor", [0, -1, 2, float("nan")])
def test_a_factor_that_shrinks_nothing_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="scale is"):
        scale(flair_run("FL-F-17"), factor)


@pytest.mark.parametrize("factor", [0.5, 0.25, 0.125])
def test_ratios_between_runs_are_kept(factor: float) -> None:
    few, many = (scale(species("geo_3k", "FedAvg", cohort, vc=True), factor) for cohort in (40, 400))
    assert number(many, "algorithm.cohort") == 10 * number(few, "algorithm.cohort")
    long, short = (scale(species("geo_3k", "FedAvg", 10, True, rounds=n), factor) for n in (10_000, 1000))
    assert number(long, "rounds") == 10 * number(short, "rounds")


@pytest.mark.parametrize("factor", [0.5, 0.1, 0.001])
def test_simulated_noise_keeps_its_ratio_to_the_cohort(factor: float) -> None:
    small = scale(flair_run("PFL-F-17"), factor)
    assert number(small, "privacy.noise_cohort") == 25 * number(small, "algorithm.cohort")


def test_a_centralised_run_keeps_more_of_its_epochs() -> None:
    """What it trains on is already smaller: 100 epochs times the root of a quarter, and a budget times the quarter."""
    assert number(scale(flair_run("C-R-17"), 0.25), "rounds") == 50
    budget = species("user_120k", "FedAvg", 10, vc=False)
    assert [number(scale(budget, 0.25), name) for name in ("rounds", "batches")] == [12_500, 12_500]
    assert number(scale(species("geo_3k", "FedAvg", 10, vc=True), 0.25), "algorithm.examples") == 128


def test_a_run_is_cut_at_so_many_rounds() -> None:
    run = flair_run("FL-F-17")
    assert cut(run, 0) == cut(run, 5000) == run
    assert (number(cut(run, 60), "rounds"), cut(run, 60).changes) == (60, ("Cut at 60 rounds of 5000.",))


def test_what_is_learnt_from_does_not_vanish() -> None:
    small = scale(on_synthetic_data(flair_run("FL-F-17")), 1e-6)
    least = {"rounds": 20, "algorithm.cohort": 5, "data.users": 20, "data.size": 32, "augment.crop": 32}
    assert {name: number(small, name) for name in least} == least


@pytest.mark.parametrize("factor", [0.3, 0.02, 0.001, 1e-6])
def test_no_budget_is_beyond_the_rounds_that_are_left(factor: float) -> None:
    for row in (row for one in ITEMS.values() for row in one.rows):
        for measure in (m for m in row.expected if isinstance(m, AfterRounds | Relative)):
            budget = scaled(measure, factor)
            assert isinstance(budget, AfterRounds | Relative)
            assert budget.rounds >= min(20, measure.rounds)
            assert all(budget.rounds <= number(scale(run, factor), "rounds") for run in row.runs)


def test_nothing_grows() -> None:
    for run in ITEMS["fedper.figure2"].runs:
        small = scale(on_synthetic_data(run), 0.9)
        assert (number(small, "data.users"), number(small, "data.size")) == (10, 32)


def test_how_learning_goes_is_left_alone() -> None:
    run = landmarks("all", "FedAvgM", True, 100)
    small = scale(on_synthetic_data(run), 0.01)
    for name in (
        "algorithm.lr",
        "algorithm.batch",
        "algorithm.epochs",
        "algorithm.server_momentum",
        "algorithm.importance",
    ):
        assert small.setting(name) == run.setting(name)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (flair_run("FL-F-1628"), {"data.task": "fine", "data.fine": "1628", "data.split": None}),
        (cifar_run(10, 0.1, 10, 1, -2, -1), {"data.task": "single", "data.coarse": "10", "data.alpha": "0.1"}),
        (cifar_run(100, 0, 10, 1, -2, -1), {"data.task": "single", "data.coarse": "100", "data.alpha": "0.001"}),
        (species("geo_3k", "FedAvg", 10, False), {"data.task": "single", "data.users": "135"}),
        (fedper_run("ResNet34", 4, 2), {"data.split": "within", "data.users": "10", "data.alpha": "0.4"}),
        (flickr_run("ResNet34", 2), {"data.task": "rating", "data.split": "within", "data.users": "30"}),
    ],
    ids=lambda one: one.name if isinstance(one, RunRecipe) else "",
)
def test_a_stand_in_is_of_the_same_kind(run: RunRecipe, expected: dict[str, str | None]) -> None:
    made = on_synthetic_data(run)
    assert (made.setting("data"), made.setting("data.path"), made.store) == ("world", None, None)
    assert {name: made.setting(name) for name in expected} == expected


def test_a_stand_in_starts_from_random_weights_and_says_so() -> None:
    made = on_synthetic_data(flair_run("FL-F-17"))
    assert (made.setting("model.weights"), made.setting("model.norm")) == (None, "group")
    assert made.changes == (
        "Stand-in: data/flair is replaced by a procedural world, and pretrained weights by random ones.",
    )


def test_every_dataset_of_the_papers_has_a_stand_in() -> None:
    used = {run.setting("data") for one in ITEMS.values() for run in one.runs}
    assert used == {name.partition(" ")[0] for name in WORLDS}
