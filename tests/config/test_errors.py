"""A wrong setting is one line that names it, and nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from manyeyes.config.errors import format_error, setting_names

WRONG = [
    ("ruonds=3", "ruonds is no setting (did you mean rounds?); see them all with manyeyes run --help"),
    ("algorithm.lrr=3", "algorithm.lrr is no setting (did you mean algorithm.lr?); see them all"),
    ("data.user=3", "data.user is no setting (did you mean data.users?)"),
    ("+new=3", "new is no setting; see them all with manyeyes run --help"),
    ("+data.new=3", "data.new is no setting"),
    ("~rounds", "rounds is taken away, and every run needs it: leave out ~rounds"),
    ("weather=rain", "weather is no setting"),
    ("weather/today=rain", "weather/today is no setting"),
    ("algorithm=fedfoo", "algorithm 'fedfoo' is unknown"),
    ("model=lenett", "model 'lenett' is unknown (did you mean lenet?): choose linear, lenet, resnet18, resnet34"),
    ("data=planets", "data 'planets' is unknown: choose world, store, flair"),
    ("track=paper", "track 'paper' is unknown: choose none, tensorboard, mlflow, wandb"),
    ("rounds=many", "rounds is 'many': it must be a whole number"),
    ("rounds=2.5", "rounds is '2.5': it must be a whole number"),
    ("rounds=", "rounds is '': it must be a whole number"),
    ("data.users=few", "data.users is 'few': it must be a whole number"),
    ("algorithm.lr=high", "algorithm.lr is 'high': it must be a number"),
    ("algorithm.keep=maybe", "algorithm.keep is 'maybe': it must be true or false"),
    ("algorithm.target=[a]", "algorithm.target is 'a': it must be a number"),
    ("algorithm.layers=3", "algorithm.layers=3"),
    ("algorithm.schedule=3", "algorithm.schedule=3"),
    ("seed=null", "seed=null"),
    ("rounds", "'rounds' cannot be read: write name=value"),
    ("algorithm.lr=[", "'algorithm.lr=[' cannot be read: write name=value"),
    ("rounds=1,2", "rounds=1,2 has several values: add --multirun to run with each"),
    ("data.users=${nothing}", "'nothing' not found"),
    ("rounds=???", "rounds must be given: add rounds=..."),
    ("rounds=0", "rounds is 0: it must be at least 1"),
    ("checkpoint_seconds=nan", "checkpoint_seconds is nan"),
    ("algorithm.lr=-1", "lr is -1.0: it must be a number above 0"),
    ("algorithm.lr=nan", "lr is nan: it must be a number above 0"),
    ("algorithm.select=best", "algorithm.select is 'best': choose uniform, poisson, by_size, everyone, pooled"),
    ("algorithm.schedule.kind=linear", "schedule 'linear' is unknown: choose constant, polynomial or cosine"),
    ("algorithm.cohort=1000", "a cohort of 1000 clients is asked of"),
    ("algorithm.layers=[fc.*]", "algorithm.personal is 'none': set it to layers, or leave them out"),
    ("algorithm.personal=arms", "algorithm.personal is 'arms': choose none, head, norms, layers"),
    ("algorithm=fedbn", "Linear has no norms that could stay with clients: choose another model"),
    ("algorithm.head_epochs=1", "no layers are personal: name some"),
    ("data.size=8", "a world's size is 8: give a number from 32 to 256"),
    ("data.task=colour", "no labels called 'colour': choose single, coarse, fine, rating"),
    ("evaluate_on=dev", "has no split 'dev'"),
    ("track.to=[paper]", "tracker 'paper' is unknown"),
    ("engine.device=abacus", "device 'abacus' is unknown"),
    ("augment.crop=99", "preprocess.crop is 99: set it to at most"),
    ("model.weights=nowhere", "nowhere"),
    ("resume=nowhere", "nowhere holds no run to continue: give the folder of one"),
    ("--bogus", "--bogus is no option: choose --help, --multirun, --cfg job"),
    ("--cfg=everything", "--cfg shows job, hydra or all, not 'everything'"),
    ("--config-dir=nowhere", "nowhere' not found"),
]


@pytest.mark.parametrize(("word", "sentence"), WRONG, ids=[word for word, _ in WRONG])
def test_a_wrong_setting_is_one_line_and_nothing_is_written(
    tmp_path: Path, command: Any, tiny: tuple[str, ...], word: str, sentence: str
) -> None:
    found = command("run", *tiny, "data.images_per_user=2", "rounds=1", word)
    assert (found.code, found.out) == (1, "")
    assert found.err.startswith("manyeyes: ")
    assert found.err.index("\n") == len(found.err) - 1
    assert sentence in found.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("data=store",), "data.path must be given: add data.path=..."),
        (
            ("algorithm=fedvc", "algorithm.epochs=5"),
            "algorithm.examples draws so many examples once a round: leave out",
        ),
        (("algorithm=fedrep", "algorithm.examples=8"), "algorithm.examples draws so many examples once a round: leave"),
        (("data=cifar10", "data.images_per_user=3"), "data.images_per_user is no setting of the data that was chosen"),
        (("data=cifar10",), "No prepared dataset at data/cifar10: create one with `manyeyes data prepare`"),
    ],
)
def test_a_setting_of_other_data_is_one_line(command: Any, words: tuple[str, ...], sentence: str) -> None:
    found = command("run", *words)
    assert (found.code, found.out) == (1, "")
    assert sentence in found.err
    assert found.err.count("\n") == 1


def test_names_of_settings_go_all_the_way_down() -> None:
    names = set(setting_names())
    assert {"rounds", "data.users", "algorithm.server_schedule.warmup", "track.to", "augment.crop"} <= names


def test_a_model_that_memory_cannot_hold_is_refused_in_a_sentence(tmp_path: Path, command: Any) -> None:
    found = command("run", "model=lenet", "model.width=2000000")
    assert (found.code, found.err.count("\n")) == (1, 1)
    assert found.err.startswith("manyeyes: this machine has too little memory for this: make algorithm.batch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text", ["CUDA out of memory. Tried to allocate 2.00 GiB.", "CUDA error: out of memory\nSearch for `cudaError...`"]
)
def test_a_full_gpu_is_a_sentence(text: str) -> None:
    assert format_error(RuntimeError(text)).startswith("the GPU has too little memory for this: make algorithm.batch")
