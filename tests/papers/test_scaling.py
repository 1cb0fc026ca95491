"""A smaller run names how much smaller it is, keeps its ratios, and trains."""

from __future__ import annotations

import pytest

from manyeyes.papers import EXHIBITS
from manyeyes.papers.exhibit import ExhibitRow, RunRecipe, make_run
from manyeyes.papers.fedper import cifar_run as fedper_run
from manyeyes.papers.fedper import flickr_run
from manyeyes.papers.flair import run as flair_run
from manyeyes.papers.hsu2020_runs import cifar_baseline, cifar_run, inaturalist_baseline, inaturalist_run, landmarks_run
from manyeyes.papers.metric import AfterRounds, scale_budget
from manyeyes.papers.printed import printed_table
from manyeyes.papers.scaling import cut, on_synthetic_data, scale


def test_rounds_and_clients_shrink_by_the_factor_and_pixels_by_its_root() -> None:
    small = scale(flair_run("FL-F-17"), 0.25)
    assert [small.count(name) for name in ("rounds", "evaluate_every", "algorithm.cohort_size")] == [1250, 25, 50]
    assert small.count("preprocess.crop") == 112
    assert small.dataset is not None
    assert small.dataset.path == small.setting("data.path") == "data/flair_128px"
    assert small.dataset.arguments == ("flair", "--raw", "raw/flair", "--size", "128")


def test_a_scaled_run_names_what_is_smaller() -> None:
    (sentence,) = scale(flair_run("FL-F-17"), 0.25).changes
    assert sentence == "Scaled by 0.25: rounds 5000 to 1250, clients per round 200 to 50, pixels per side 224 to 112."


def test_a_factor_of_one_changes_nothing() -> None:
    assert scale(flair_run("FL-F-17"), 1) == flair_run("FL-F-17")


@pytest.mark.parametrize("factor", [0, -1, 2, float("nan")])
def test_an_invalid_factor_is_rejected(factor: float) -> None:
    with pytest.raises(ValueError, match="scale is"):
        scale(flair_run("FL-F-17"), factor)


@pytest.mark.parametrize("factor", [0.5, 0.25, 0.125])
def test_ratios_between_runs_are_kept(factor: float) -> None:
    small, large = (scale(inaturalist_run("geo_3k", "FedAvg", cohort, vc=True), factor) for cohort in (40, 400))
    assert large.count("algorithm.cohort_size") == 10 * small.count("algorithm.cohort_size")
    long, short = (scale(inaturalist_run("geo_3k", "FedAvg", 10, True, rounds=n), factor) for n in (10_000, 1000))
    assert long.count("rounds") == 10 * short.count("rounds")


@pytest.mark.parametrize("factor", [0.5, 0.1, 0.001])
def test_simulated_noise_keeps_its_ratio_to_the_cohort(factor: float) -> None:
    small = scale(flair_run("PFL-F-17"), factor)
    assert small.count("privacy.noise_cohort_size") == 25 * small.count("sampler.cohort_size")


def test_a_centralized_run_keeps_more_of_its_epochs() -> None:
    """Its dataset is already smaller: 100 epochs times the root of a quarter, and a budget times the quarter."""
    assert scale(flair_run("C-R-17"), 0.25).count("rounds") == 50
    budget = inaturalist_run("user_120k", "FedAvg", 10, vc=False)
    assert [scale(budget, 0.25).count(name) for name in ("rounds", "max_local_batches")] == [12_500, 12_500]
    assert scale(inaturalist_run("geo_3k", "FedAvg", 10, vc=True), 0.25).count("algorithm.virtual_client_size") == 128


def test_a_run_is_cut_at_a_number_of_rounds() -> None:
    run = flair_run("FL-F-17")
    assert cut(run, 0) == cut(run, 5000) == run
    assert (cut(run, 60).count("rounds"), cut(run, 60).changes) == (60, ("Cut at 60 rounds of 5000.",))


def test_a_minimum_of_rounds_clients_and_pixels_is_left() -> None:
    small = scale(on_synthetic_data(flair_run("FL-F-17")), 1e-6)
    minimum = {"rounds": 20, "algorithm.cohort_size": 5, "data.users": 20, "data.size": 32, "preprocess.crop": 32}
    assert {name: small.count(name) for name in minimum} == minimum


@pytest.mark.parametrize("factor", [0.3, 0.02, 0.001, 1e-6])
def test_no_budget_is_beyond_the_rounds_that_are_left(factor: float) -> None:
    for row in (row for exhibit in EXHIBITS.values() for row in exhibit.rows):
        budgets = [metric.rounds for metric in row.expected if isinstance(metric, AfterRounds)]
        for budget in (budget for budget in budgets if budget is not None):
            scaled = scale_budget(AfterRounds("accuracy", budget), factor)
            assert isinstance(scaled, AfterRounds)
            assert scaled.rounds is not None
            assert scaled.rounds >= min(20, budget)
            assert all(scaled.rounds <= scale(run, factor).count("rounds") for run in row.runs)


def test_nothing_grows() -> None:
    for run in EXHIBITS["fedper.figure2"].runs:
        small = scale(on_synthetic_data(run), 0.9)
        assert (small.count("data.users"), small.count("data.size")) == (10, 32)


def test_learning_rates_batches_and_epochs_are_not_scaled() -> None:
    run = landmarks_run("all", "FedAvgM", True, 100)
    small = scale(on_synthetic_data(run), 0.01)
    for name in (
        "algorithm.lr",
        "algorithm.batch_size",
        "algorithm.epochs",
        "server_optimizer.momentum",
        "example_weighting",
    ):
        assert small.setting(name) == run.setting(name)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (flair_run("FL-F-1628"), {"data.task": "fine", "data.fine": "1628", "data.split": None}),
        (cifar_run(10, 0.1, 10, 1, -2, -1), {"data.task": "single", "data.coarse": "10", "partitioner.alpha": "0.1"}),
        (
            cifar_run(100, 0, 10, 1, -2, -1),
            {"data.coarse": "100", "partitioner": "dirichlet", "partitioner.alpha": "0"},
        ),
        (inaturalist_run("geo_3k", "FedAvg", 10, False), {"data.task": "single", "partitioner.num_clients": "135"}),
        (
            fedper_run("ResNet34", 4, 2),
            {"data.users": "10", "partitioner": "classes", "partitioner.classes_per_client": "4"},
        ),
        (flickr_run("ResNet34", 2), {"data.task": "rating", "data.split": "per_user", "data.users": "30"}),
    ],
    ids=lambda value: value.name if isinstance(value, RunRecipe) else "",
)
def test_synthetic_data_is_of_the_same_kind(run: RunRecipe, expected: dict[str, str | None]) -> None:
    synthetic = on_synthetic_data(run)
    assert (synthetic.setting("data"), synthetic.setting("data.path"), synthetic.dataset) == ("synthetic", None, None)
    assert {name: synthetic.setting(name) for name in expected} == expected


def test_a_run_on_synthetic_data_starts_from_random_weights() -> None:
    synthetic = on_synthetic_data(flair_run("FL-F-17"))
    assert (synthetic.setting("model.pretrained"), synthetic.setting("model.norm")) == (None, "group")
    assert synthetic.changes == ("Synthetic images replace the dataset, and random weights the pretrained ones.",)


def test_every_alpha_divides_the_same_synthetic_images() -> None:
    """A relative accuracy refers to centralized training on them, as in the paper."""
    runs = [cifar_baseline(10), *(cifar_run(10, alpha, 10, 1, -2, -1) for alpha in (100, 0.5, 0))]
    settings = [[s for s in on_synthetic_data(run).settings if s.startswith("data")] for run in runs]
    assert settings == [settings[0]] * 4


def test_every_partition_of_inaturalist_divides_the_same_synthetic_images_into_the_papers_clients() -> None:
    """A relative accuracy refers to centralized training on them; the sizes of clients vary, or FedVC changes nothing."""
    splits = {"user_120k": "9275", "geo_100": "3606", "geo_1k": "368", "geo_3k": "135", "geo_30k": "11"}
    runs = [on_synthetic_data(inaturalist_run(split, "FedAvg", 10, vc=True)) for split in splits]
    settings = [
        [s for s in run.settings if s.startswith("data")] for run in (*runs, on_synthetic_data(inaturalist_baseline()))
    ]
    assert settings == [settings[0]] * 6
    assert [run.setting("partitioner.num_clients") for run in runs] == list(splits.values())
    assert all(float(run.setting("partitioner.size_spread") or 0) > 0 for run in runs)


@pytest.mark.parametrize("row", EXHIBITS["flair.figure3"].rows, ids=lambda row: row.name)
def test_stand_ins_of_flair_count_its_own_labels(row: ExhibitRow) -> None:
    (dataset,) = row.datasets
    assert on_synthetic_data(make_run(row.name, dataset)).setting("data.task") == row.name


def test_every_dataset_of_the_papers_has_a_synthetic_one() -> None:
    names = {run.setting("data") for exhibit in EXHIBITS.values() for run in exhibit.runs}
    assert names == {name for name, *_ in printed_table("synthetic", "datasets")[1:]}
