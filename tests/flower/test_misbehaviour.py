"""A client that misbehaves is rejected, counted and named, and the run is the one that the others would have had."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message

from manyeyes.flower.app import FederationConfig
from manyeyes.flower.server import serve
from manyeyes.models.flat import FlatModel
from manyeyes.training.result import Result
from tests.flower.fake_grid import Change
from tests.flower.hostile import SETTINGS as HOSTILE_REPLIES
from tests.flower.hostile import change_array, failing, one_each_round, when_training, with_config

SETTINGS = "model=linear rounds=2 algorithm.cohort_size=4 algorithm.batch_size=3 algorithm.lr=0.05 evaluate_every=0 engine.device=cpu"
BAD_NODE = 12  # its user is called 2
FAST_KINDS = ("values", "top-k")


def make_config(folder: Path) -> FederationConfig:
    return FederationConfig(
        SETTINGS, str(folder), num_clients=4, join_timeout=5, reply_timeout=0.2, retry_delay=0.01, max_retries=1
    )


@pytest.fixture
def config(tmp_path: Path) -> FederationConfig:
    return make_config(tmp_path / "run")


@pytest.fixture(scope="module")
def weights_without_it(make_grid: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """The weights that the others train if the bad node sends nothing."""
    config = make_config(tmp_path_factory.mktemp("silent") / "run")
    grid = make_grid(config)
    grid.nodes[BAD_NODE].change = when_training(lambda reply: None)
    return weights(serve(grid, config))


def with_counts(reply: Message, **counts: list[int]) -> Message:
    reply.content["counts"] = ArrayRecord({name: Array(np.array(values)) for name, values in counts.items()})
    return reply


def weights(result: Result) -> torch.Tensor:
    return FlatModel(result.model).read()


def run_silent_and_hostile(
    make_grid: Callable[..., Any], config: FederationConfig, change: Change, settings: str, rounds: int
) -> tuple[Result, Result]:
    """Return the run in which the bad node always fails, and the one in which its replies are changed."""
    results = []
    silent = one_each_round({str(round): (failing("it is absent"), "") for round in range(rounds)})
    for name, change_of_run in (("silent", silent), ("hostile", change)):
        settings_of_run = f"{config.settings} rounds={rounds} {settings}"
        run_config = replace(config, settings=settings_of_run, folder=f"{config.folder}-{name}")
        grid = make_grid(run_config)
        grid.nodes[BAD_NODE].change = change_of_run
        results.append(serve(grid, run_config))
    return results[0], results[1]


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=[] if k in FAST_KINDS else pytest.mark.slow) for k in HOSTILE_REPLIES]
)
def test_hostile_replies_are_left_out_and_named_and_have_no_effect(
    make_grid: Callable[..., Any], config: FederationConfig, kind: str
) -> None:
    settings, cases = HOSTILE_REPLIES[kind]
    silent, hostile = run_silent_and_hostile(make_grid, config, one_each_round(cases), settings, len(cases))
    assert torch.equal(weights(hostile), weights(silent))
    for (name, (_, pattern)), event in zip(cases.items(), hostile.events[1:], strict=True):
        assert event.get("rejected_clients") == ["2"], name
        assert re.search(pattern, event["rejection_reasons"]["2"]), (name, event["rejection_reasons"])


def test_there_are_at_least_fifty_hostile_replies() -> None:
    assert sum(len(cases) for _, cases in HOSTILE_REPLIES.values()) >= 50


def test_a_reply_that_comes_twice_counts_once(
    make_grid: Callable[..., Any], config: FederationConfig, tmp_path: Path
) -> None:
    once, twice = make_grid(config), make_grid(config)
    twice.duplicated.add(BAD_NODE)
    expected = weights(serve(once, config))
    result = serve(twice, replace(config, folder=str(tmp_path / "twice")))
    assert torch.equal(weights(result), expected)
    assert "rejected_clients" not in result.events[1]


@pytest.mark.slow
def test_a_reply_of_the_round_before_is_left_out(
    make_grid: Callable[..., Any], config: FederationConfig, weights_without_it: torch.Tensor
) -> None:
    sent: list[Message] = []

    def send_the_last(reply: Message) -> Message | None:
        sent.append(reply)
        return Message(sent[-2].content, reply_to=reply) if len(sent) > 1 else None

    grid = make_grid(config)
    grid.nodes[BAD_NODE].change = when_training(send_the_last)
    result = serve(grid, config)
    assert torch.equal(weights(result), weights_without_it)
    assert result.events[2]["rejection_reasons"] == {"2": "2 is rejected: it sent an update of round 1 as client 2"}


def test_a_reply_that_cannot_be_read_does_not_block_the_others(
    make_grid: Callable[..., Any], config: FederationConfig, weights_without_it: torch.Tensor
) -> None:
    grid = make_grid(config)

    def corrupt(reply: Message) -> Message:
        grid.unreadable.add(BAD_NODE)
        return reply

    grid.nodes[BAD_NODE].change = when_training(corrupt)
    result = serve(grid, config)
    assert torch.equal(weights(result), weights_without_it)
    reason = "2 is rejected: its reply could not be read: these bytes are not a message"
    assert result.events[1]["rejection_reasons"] == {"2": reason}


def serve_with(make_grid: Callable[..., Any], config: FederationConfig, change: Change | None) -> Result:
    """Serve a run in which the bad node's replies are changed, in a folder of its own."""
    config = replace(config, folder=f"{config.folder}-{'honest' if change is None else 'hostile'}")
    grid = make_grid(config)
    if change is not None:
        grid.nodes[BAD_NODE].change = change
    return serve(grid, config)


def test_a_false_loss_changes_no_weights_and_hardly_the_reported_loss(
    make_grid: Callable[..., Any], config: FederationConfig
) -> None:
    honest = serve_with(make_grid, config, None)
    hostile = serve_with(make_grid, config, when_training(lambda reply: with_config(reply, loss=9e5)))
    assert torch.equal(weights(hostile), weights(honest))
    assert hostile.events[1]["clipped_clients"]["2"].endswith("its loss is 9e+05, and counts as 10.9")
    assert hostile.events[1]["train_loss"] < 10  # three losses near 1, and 10


@pytest.mark.slow
def test_a_false_loss_of_an_evaluation_hardly_changes_the_reported_loss(
    make_grid: Callable[..., Any], config: FederationConfig
) -> None:
    def change(task: Message, reply: Message) -> Message:
        return with_config(reply, loss=2e5) if task.metadata.message_type == "evaluate" else reply

    honest, hostile = serve_with(make_grid, config, None), serve_with(make_grid, config, change)
    assert hostile.final["accuracy"] == honest.final["accuracy"]
    assert hostile.final["loss"] < honest.final["loss"] + 10 / 4  # one of four clients, each with two test images


@pytest.mark.parametrize("settings", ["algorithm=scaffold", pytest.param("algorithm=mimelite", marks=pytest.mark.slow)])
def test_what_a_correction_uploads_is_clipped_and_named(
    make_grid: Callable[..., Any], config: FederationConfig, settings: str
) -> None:
    config = replace(config, settings=f"{config.settings} {settings}")
    change = change_array(lambda values: -100 * values, "upload", "upload")
    hostile = serve_with(make_grid, config, when_training(change))
    reason = hostile.events[1]["clipped_clients"]["2"]
    assert re.search("its upload has .* times the median norm: it counts as 2 times", reason)
    assert (weights(hostile) - weights(serve_with(make_grid, config, None))).norm() < 1


@pytest.mark.slow
def test_statistics_of_batch_norm_are_bounded_apart_from_the_weights(
    make_grid: Callable[..., Any], config: FederationConfig
) -> None:
    settings = f"{config.settings} model=tests.flower.own_components:normalized_net"
    config = replace(config, settings=settings)

    def lie(values: Any) -> Any:
        values[-8:] = -1e4  # four means and four variances
        return values

    hostile = serve_with(make_grid, config, when_training(change_array(lie)))
    reason = hostile.events[1]["clipped_clients"]["2"]
    assert re.search("change of BatchNorm statistics has .* times the median norm: it counts as 2 times", reason)
    honest = serve_with(make_grid, config, None)
    variances = [result.model.state_dict()["1.running_var"] for result in (hostile, honest)]
    assert bool((variances[0] >= 0).all())
    torch.testing.assert_close(*variances, rtol=0.5, atol=0.5)


def test_a_component_of_the_user_works_on_both_sides(make_grid: Callable[..., Any], config: FederationConfig) -> None:
    own = "model=tests.flower.own_components:normalized_net aggregator=tests.flower.own_components:HalfMean"
    result = serve_with(make_grid, replace(config, settings=f"{config.settings} {own}"), None)
    assert any(isinstance(layer, torch.nn.BatchNorm2d) for layer in result.model.modules())
    assert "rejected_clients" not in result.events[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("misbehave", "reason"),
    [
        (lambda r: with_counts(r, correct=[9, 0, 0], count=[2, 0, 0]), "do not add up to its 2 test images"),
        (lambda r: with_counts(r, correct=[90, 0, 0], count=[90, 0, 0]), "do not add up to its 2 test images"),
        (lambda r: with_counts(r, correct=[-1, 0, 0], count=[2, 0, 0]), "do not add up to its 2 test images"),
        (lambda r: with_counts(r, correct=[1, 0], count=[2, 0]), "not int64 [3]"),
        (lambda r: with_config(r, loss=math.inf), "its loss is out of range"),
    ],
)
def test_a_false_evaluation_does_not_count(
    make_grid: Callable[..., Any],
    config: FederationConfig,
    misbehave: Callable[[Message], Message],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def change(task: Message, reply: Message) -> Message:
        return misbehave(reply) if task.metadata.message_type == "evaluate" else reply

    grid = make_grid(config)
    grid.nodes[BAD_NODE].change = change
    assert serve(grid, config).final["examples"] == 6  # of three clients, two each
    printed = capsys.readouterr().err
    assert "evaluation: 2 is rejected: " in printed
    assert reason in printed
