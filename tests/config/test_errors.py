"""A wrong setting is one sentence that names it, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyeyes.config.errors import format_error

HELP = "Run `manyeyes run --help` for the list."
WRONG = [
    ("ruonds=3", f"Unknown setting `ruonds` (did you mean 'rounds'?). {HELP}"),
    ("algorithm.learning_rate=3", "Unknown setting `algorithm.learning_rate` (did you mean 'algorithm.lr'?)."),
    ("clients_per_round=3", "Unknown setting `clients_per_round` (did you mean 'algorithm.cohort_size'?)."),
    ("algorithm.lrr=3", "Unknown setting `algorithm.lrr` (did you mean 'algorithm.lr'?)."),
    ("data.user=3", "Unknown setting `data.user` (did you mean 'data.users'?)."),
    ("+new=3", "Unknown setting `new`"),
    ("+data.new=3", "Unknown setting `data.new`"),
    ("~rounds", "~rounds removes a setting that every run needs: leave it out."),
    ("weather=rain", "Unknown setting `weather`"),
    ("weather/today=rain", "Unknown setting `weather"),
    ("algorithm=fedfoo", "Unknown algorithm 'fedfoo'"),
    (
        "model=lenett",
        "Unknown model 'lenett' (did you mean 'lenet'?): choose lenet, efficientnet_lite0, linear, mobilenet_v1",
    ),
    ("data=planets", "Unknown data 'planets': choose synthetic, store, cifar10"),
    ("trackers=[paper]", "Unknown trackers 'paper': choose tensorboard, mlflow, wandb, or package.module:Name."),
    ("callbacks=[early_stoping]", "Unknown callbacks 'early_stoping' (did you mean 'early_stopping'?)"),
    ("metrics=top", "Unknown metrics 'top'"),
    ("loss=mse", "Unknown loss 'mse'"),
    ("partitioner=random", "Unknown partitioner 'random': choose dirichlet, classes, iid, none"),
    ("callbacks.early_stopping.patience=3", "which is not in callbacks: add callbacks=[early_stopping]."),
    ("server_optimizer.tau=3", "server_optimizer.tau is not an option of the chosen server_optimizer: choose"),
    ("rounds=many", "rounds is 'many': it must be a whole number"),
    ("rounds=2.5", "rounds is '2.5': it must be a whole number"),
    ("rounds=", "rounds is '': it must be a whole number"),
    ("data.users=few", "data.users is 'few': it must be a whole number"),
    ("algorithm.lr=high", "algorithm.lr is 'high': it must be a number"),
    ("algorithm.persist_state=maybe", "algorithm.persist_state is 'maybe': it must be true or false"),
    ("server_optimizer=5", "server_optimizer=5 is not possible: write server_optimizer=NAME"),
    ("algorithm.persist_state=-1", "algorithm.persist_state is '-1': it must be true or false"),
    ("preprocess.scale=[a,b]", "preprocess.scale is 'a': it must be a number"),
    ("preprocess.mean=3", "preprocess.mean"),
    ("algorithm.schedule=3", "algorithm.schedule=3"),
    ("seed=null", "seed=null is not possible: give a value."),
    ("rounds", "Cannot read 'rounds': write name=value"),
    ("algorithm.lr=[", "Cannot read 'algorithm.lr=[': write name=value"),
    ("rounds=1,2", "rounds=1,2 has several values: add --multirun to run with each"),
    ("data.users=${nothing}", "data.users is '${nothing}', which refers to another setting: give the value itself."),
    ("algorithm.lr=${rounds}", "algorithm.lr is '${rounds}', which refers to another setting"),
    ("rounds=99999999999999999999999", "rounds is 99999999999999999999999: set it to a whole number of at least 1"),
    ("data.seed=-1", "data.seed is -1: set it to a whole number of at least 0"),
    ("engine.threads=-1", "engine.threads is -1: set it to a whole number of at least 0"),
    ("checkpoint_seconds=inf", "checkpoint_seconds is inf: set it to a number of at least 0"),
    ("evaluate_every_fraction=inf", "evaluate_every_fraction is inf: set it to a number of at least 0"),
    ("rounds=???", "rounds must be given: add rounds=..."),
    ("rounds=0", "rounds is 0: set it to a whole number of at least 1"),
    ("algorithm.lr=-1", "algorithm.lr is -1.0: set it to a number above 0"),
    ("sampler=best", "Unknown sampler 'best': choose uniform, poisson, size_weighted, all, centralized"),
    ("algorithm=fedbn", "Linear has no norm"),
    ("preprocess.crop=99", "crop"),
    ("resume=nowhere", "Found no run to resume in nowhere: give the folder of a run."),
    ("--bogus", "Unknown option --bogus: choose --help, --multirun, --cfg job"),
    ("--rounds=3", "Unknown option --rounds=3: write rounds=3."),
    ("--cfg=everything", "--cfg=everything is not possible: choose job, hydra or all."),
    ("--config-dir=nowhere", "nowhere' not found"),
]

WRONG_VALUES = [  # found when the run is built
    ("checkpoint_seconds=nan", "checkpoint_seconds is nan"),
    ("algorithm.lr=nan", "algorithm.lr is nan: set it to a number above 0"),
    ("algorithm.schedule.kind=linear", "algorithm.schedule.kind is 'linear': set it to constant, polynomial or cosine"),
    ("algorithm.cohort_size=1000", "cohort_size=1000"),
    ("data.size=8", "size is 8"),
    ("data.task=color", "color"),
    ("eval_split=dev", "dev"),
    ("engine.device=abacus", "abacus"),
    ("model.pretrained=nowhere", "nowhere"),
]
CASES = [*WRONG, *(pytest.param(*case, marks=pytest.mark.slow) for case in WRONG_VALUES)]


@pytest.mark.slow
@pytest.mark.fast_cases(
    "ruonds=3",
    "algorithm.lrr=3",
    "weather=rain",
    "algorithm=fedfoo",
    "rounds=many",
    "seed=null",
    "algorithm.lr=[",
    "rounds=1,2",
    "rounds=0",
    "sampler=best",
    "resume=nowhere",
    "--bogus",
)
@pytest.mark.parametrize(("override", "sentence"), CASES, ids=[case[0] for case in (*WRONG, *WRONG_VALUES)])
def test_a_wrong_setting_is_one_sentence_and_nothing_is_written(
    tmp_path: Path, command: Any, tiny: tuple[str, ...], override: str, sentence: str
) -> None:
    settings = {setting.partition("=")[0]: setting for setting in (*tiny, "rounds=1", override)}  # each given once
    arguments = [override] if override.startswith("resume=") else [*settings.values()]
    outcome = command("run", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("manyeyes: ")
    assert outcome.err.index("\n") == len(outcome.err) - 1
    assert sentence in outcome.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (("data=store",), "data.path must be given: add data.path=..."),
        (
            ("data=cifar10", "data.images_per_user=3"),
            "data.images_per_user is not an option of the chosen data: choose",
        ),
        (("data=cifar10",), "data/cifar10"),
        (
            (
                "sampler=poisson",
                "client_weighting=uniform",
                "privacy=central",
                "privacy.epsilon=8",
                "aggregator=median",
            ),
            "set aggregator=none or privacy=none",
        ),
        (("privacy=central", "client_weighting=examples"), "set client_weighting=uniform"),
    ],
)
def test_an_invalid_combination_is_one_sentence(
    tmp_path: Path, command: Any, overrides: tuple[str, ...], sentence: str
) -> None:
    small = ("data.users=40", "data.images_per_user=2") if "data=" not in overrides[0] else ()
    outcome = command("run", "model=linear", *small, *overrides)
    assert (outcome.code, outcome.out) == (2, "")
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_model_that_memory_cannot_hold_is_refused_in_a_sentence(tmp_path: Path, command: Any) -> None:
    outcome = command("run", "model=lenet", "model.width=2000000")
    assert (outcome.code, outcome.err.count("\n")) == (2, 1)
    assert outcome.err.startswith(
        "manyeyes: This machine has too little memory for this run: make algorithm.batch_size"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["CUDA out of memory. Tried to allocate 2.00 GiB.", "CUDA error: out of memory\nSearch for `cudaError...`"]
)
def test_a_full_gpu_is_a_sentence(text: str) -> None:
    message = format_error(RuntimeError(text))
    assert message.startswith("The GPU has too little memory for this run: make algorithm.batch_size")


def test_the_name_of_a_prepared_dataset_is_answered_with_its_settings(command: Any, tmp_path: Path) -> None:
    (tmp_path / "data/digits").mkdir(parents=True)
    (tmp_path / "data/digits/meta.json").touch()
    outcome = command("run", "data=digits")
    assert "data/digits is a prepared dataset: data=store data.path=data/digits." in outcome.err
