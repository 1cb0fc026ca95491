"""Rounds of a federation whose clients go, return, lose answers or are too few; and a server that starts again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Message

from manyeyes.components import HeadLayers
from manyeyes.engines.distributed import PeerLostError
from manyeyes.flower.config import FederationConfig
from manyeyes.flower.server import serve
from manyeyes.models.flat import FlatModel
from manyeyes.training.result import Result

COMMON = (
    "model=linear rounds=3 algorithm.cohort=4 algorithm.batch=3 algorithm.lr=0.05 evaluate_every=0 engine.device=cpu"
)
WORDS = f"{COMMON} algorithm=scaffold checkpoint_seconds=0"
Make = Callable[..., Any]


@pytest.fixture
def rules(tmp_path: Path) -> FederationConfig:
    return FederationConfig(
        settings=WORDS,
        folder=str(tmp_path / "run"),
        clients=4,
        join_timeout=5,
        timeout=0.2,
        retry_delay=0.01,
        max_retries=2,
    )


def weights(result: Result) -> torch.Tensor:
    return FlatModel(result.model).read()


def left_out(folder: str) -> list[list[str]]:
    events = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [event.get("left_out", []) for event in events[1:]]


def in_round(round: int, do: Callable[[], None]) -> Callable[[Message, Message], Message]:
    """A change that changes nothing but, before that round's answer is sent, the world."""

    def change(task: Message, answer: Message) -> Message:
        if task.metadata.message_type == "train" and task.metadata.group_id == str(round):
            do()
        return answer

    return change


def test_an_answer_that_is_lost_leaves_no_trace_with_the_client(
    federation: Make, rules: FederationConfig, tmp_path: Path
) -> None:
    def lost(task: Message, answer: Message) -> Message | None:
        return None if task.metadata.group_id == "2" else answer

    def broken(task: Message, context: Any) -> Message:
        if task.metadata.group_id == "2":
            raise ValueError("out of memory")
        return app(task, context)

    first, second = federation(rules), federation(rules)
    first.nodes[11].change = lost  # it has trained, and its control variate has moved
    app, second.nodes[11].app = second.nodes[11].app, broken  # it has not
    found = serve(first, rules)
    other = replace(rules, folder=str(tmp_path / "other"))
    assert torch.equal(weights(found), weights(serve(second, other)))
    assert left_out(rules.folder) == left_out(other.folder) == [[], ["1"], []]


def test_a_client_that_went_is_named_and_is_back_when_it_returns_as_another_node(
    federation: Make, rules: FederationConfig
) -> None:
    grid = federation(rules)
    gone: list[Any] = []
    grid.nodes[10].change = in_round(1, lambda: gone.append(grid.nodes.pop(13)))
    grid.nodes[11].change = in_round(2, lambda: grid.nodes.__setitem__(99, gone[0]))
    serve(grid, rules)
    assert left_out(rules.folder) == [["3"], ["3"], []]


def test_a_round_with_too_few_good_answers_asks_again_only_who_is_missing(
    federation: Make, rules: FederationConfig
) -> None:
    grid, failed = federation(rules), list[str]()

    def twice(task: Message, answer: Message) -> Message | None:
        failed.append(task.metadata.group_id)
        return None if failed.count("2") in (1, 2) and task.metadata.group_id == "2" else answer

    grid.nodes[12].change = twice
    serve(grid, replace(rules, least_clients=4))
    assert left_out(rules.folder) == [[], [], []]
    asked = [m.metadata.dst_node_id for m in grid.sent if m.metadata.group_id == "2"]
    assert sorted(asked) == [10, 11, 12, 12, 12, 13]


def test_a_run_that_stops_for_want_of_clients_says_why_and_goes_on_when_they_are_back(
    federation: Make, rules: FederationConfig, tmp_path: Path
) -> None:
    kept = {"keep": str(tmp_path / "kept")}
    whole = weights(serve(federation(rules, **kept), replace(rules, folder=str(tmp_path / "whole"))))

    grid = federation(rules, keep=str(tmp_path / "kept again"))
    grid.nodes[10].change = in_round(2, lambda: [grid.nodes.pop(node) for node in (11, 12, 13)] and None)
    reason = "round 3 had 1 good answers and needs 2, though it was repeated 2 times .*1 is not connected; 2 is not"
    with pytest.raises(PeerLostError, match=reason):
        serve(grid, replace(rules, least_clients=2))
    again = federation(rules, keep=str(tmp_path / "kept again"))  # new processes: nothing in their contexts
    again.nodes = {node + 50: one for node, one in again.nodes.items()}
    found = serve(again, replace(rules, resume=rules.folder))
    torch.testing.assert_close(weights(found), whole, rtol=1e-6, atol=1e-7)
    assert left_out(rules.folder) == [[], [], []]


def test_a_private_client_that_sends_too_much_counts_for_no_more_than_the_clip(
    federation: Make, rules: FederationConfig, tmp_path: Path
) -> None:
    private = (
        "algorithm.weigh=equally privacy=central privacy.noise=1 privacy.epsilon=0 privacy.reproducible_noise=true"
    )
    rules = replace(rules, settings=f"{COMMON} {private} privacy.clip=0.001 rounds=1")

    def louder(task: Message, answer: Message) -> Message:
        if task.metadata.message_type == "train":
            array = answer.content["update"]["values"]
            answer.content["update"]["values"] = type(array)(array.numpy() * 1000)
        return answer

    honest = weights(serve(federation(rules), rules))
    grid = federation(rules)
    grid.nodes[10].change = louder
    found = weights(serve(grid, replace(rules, folder=str(tmp_path / "louder"))))
    torch.testing.assert_close(found, honest, rtol=1e-5, atol=1e-6)


def test_personal_layers_are_never_sent(federation: Make, rules: FederationConfig) -> None:
    words = f"{COMMON} algorithm=fedper algorithm.head_layers=1 model=lenet model.width=4"
    rules, sizes = replace(rules, settings=words), set()
    grid = federation(rules)

    def seen(task: Message, answer: Message) -> Message:
        if task.metadata.message_type == "train":
            sizes.add(answer.content["update"]["values"].shape)
        return answer

    grid.nodes[10].change = seen
    flat = FlatModel(serve(grid, rules).model)
    head = sum(
        torch.Size(shape).numel()
        for name, shape in flat.shapes.items()
        if name in HeadLayers(1).parameter_names(flat.module)
    )
    assert sizes == {(flat.num_shared - head,)}
    assert head > 0
    assert list(grid.nodes[10].context.state) == ["kept-1", "kept-2"]
