"""Rounds whose clients disconnect, return, lose replies or are too few; and a server that is restarted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, Message

from manyeyes.components import HeadLayers
from manyeyes.engines.distributed.process_group import PeerLostError
from manyeyes.flower.app import FederationConfig
from manyeyes.flower.server import serve
from manyeyes.models.flat import FlatModel
from manyeyes.training.result import Result

COMMON = "model=linear rounds=3 algorithm.cohort_size=4 algorithm.batch_size=3 algorithm.lr=0.05 evaluate_every=0 engine.device=cpu"
SETTINGS = f"{COMMON} algorithm=scaffold checkpoint_seconds=0"
MakeGrid = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path) -> FederationConfig:
    return FederationConfig(
        settings=SETTINGS,
        folder=str(tmp_path / "run"),
        num_clients=4,
        join_timeout=5,
        reply_timeout=0.2,
        retry_delay=0.01,
        max_retries=2,
        reject_opposed=False,  # which a client with a few noisy images may be
    )


def weights(result: Result) -> torch.Tensor:
    return FlatModel(result.model).read()


def rejected_clients(folder: str) -> list[list[str]]:
    events = [json.loads(line) for line in Path(folder, "metrics.jsonl").read_text().splitlines()]
    return [event.get("rejected_clients", []) for event in events[1:]]


def before_reply_of_round(round: int, act: Callable[[], object]) -> Callable[[Message, Message], Message]:
    """Return a change that leaves replies as they are, and acts before that round's reply is sent."""

    def change(task: Message, reply: Message) -> Message:
        if task.metadata.message_type == "train" and task.metadata.group_id == str(round):
            act()
        return reply

    return change


@pytest.mark.slow
def test_a_lost_reply_has_no_effect_on_the_client(
    make_grid: MakeGrid, config: FederationConfig, tmp_path: Path
) -> None:
    def lose_round_2(task: Message, reply: Message) -> Message | None:
        return None if task.metadata.group_id == "2" else reply

    def fail_round_2(task: Message, context: Any) -> Message:
        if task.metadata.group_id == "2":
            raise ValueError("out of memory")
        return app(task, context)

    losing, failing = make_grid(config), make_grid(config)
    losing.nodes[11].change = lose_round_2  # it has trained, and its control variate has changed
    app, failing.nodes[11].app = failing.nodes[11].app, fail_round_2  # it has not
    other = replace(config, folder=str(tmp_path / "other"))
    assert torch.equal(weights(serve(losing, config)), weights(serve(failing, other)))
    assert rejected_clients(config.folder) == rejected_clients(other.folder) == [[], ["1"], []]


@pytest.mark.slow
def test_a_client_that_disconnects_is_named_and_takes_part_again_as_another_node(
    make_grid: MakeGrid, config: FederationConfig
) -> None:
    grid = make_grid(config)
    disconnected: list[Any] = []
    grid.nodes[10].change = before_reply_of_round(1, lambda: disconnected.append(grid.nodes.pop(13)))
    grid.nodes[11].change = before_reply_of_round(2, lambda: grid.nodes.__setitem__(99, disconnected[0]))
    serve(grid, config)
    assert rejected_clients(config.folder) == [["3"], ["3"], []]


@pytest.mark.slow
def test_a_round_with_too_few_valid_replies_asks_only_the_missing_clients_again(
    make_grid: MakeGrid, config: FederationConfig
) -> None:
    grid, rounds = make_grid(config), list[str]()

    def lose_twice(task: Message, reply: Message) -> Message | None:
        rounds.append(task.metadata.group_id)
        return None if rounds.count("2") in (1, 2) and task.metadata.group_id == "2" else reply

    grid.nodes[12].change = lose_twice
    serve(grid, replace(config, min_clients=4))
    assert rejected_clients(config.folder) == [[], [], []]
    asked_nodes = [m.metadata.dst_node_id for m in grid.sent if m.metadata.group_id == "2"]
    assert sorted(asked_nodes) == [10, 11, 12, 12, 12, 13]


@pytest.mark.slow
def test_a_run_that_stops_for_lack_of_clients_says_why_and_can_be_resumed(
    make_grid: MakeGrid, config: FederationConfig, tmp_path: Path
) -> None:
    uninterrupted = make_grid(config, state_dir=str(tmp_path / "states"))
    expected = weights(serve(uninterrupted, replace(config, folder=str(tmp_path / "uninterrupted"))))
    states = list((tmp_path / "states").rglob("*"))
    assert states
    assert not any(path.stat().st_mode & 0o077 for path in states), "others can read the state of a client"

    grid = make_grid(config, state_dir=str(tmp_path / "other states"))
    grid.nodes[10].change = before_reply_of_round(2, lambda: [grid.nodes.pop(node) for node in (11, 12, 13)])
    reason = "round 3 has 1 valid replies and needs 2, after 2 retries .*1 is not connected; 2 is not"
    with pytest.raises(PeerLostError, match=reason):
        serve(grid, replace(config, min_clients=2))
    restarted = make_grid(config, state_dir=str(tmp_path / "other states"))  # new processes with empty contexts
    restarted.nodes = {node + 50: client for node, client in restarted.nodes.items()}
    result = serve(restarted, replace(config, resume=config.folder))
    torch.testing.assert_close(weights(result), expected, rtol=1e-6, atol=1e-7)
    assert rejected_clients(config.folder) == [[], [], []]


def test_resuming_a_folder_without_a_federated_run_is_refused(
    make_grid: MakeGrid, config: FederationConfig, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="has no federated run of this version: set resume"):
        serve(make_grid(config), replace(config, resume=str(tmp_path)))


@pytest.mark.slow
def test_a_private_client_that_sends_a_longer_update_counts_for_the_clipping_norm_at_most(
    make_grid: MakeGrid, config: FederationConfig, tmp_path: Path
) -> None:
    private = "client_weighting=uniform privacy=central privacy.noise_multiplier=1 privacy.epsilon=0 privacy.reproducible_noise=true"
    config = replace(config, settings=f"{COMMON} {private} privacy.clipping_norm=0.001 rounds=1")

    def amplify(task: Message, reply: Message) -> Message:
        if task.metadata.message_type == "train":
            update = reply.content.array_records["update"]
            update["values"] = Array(update["values"].numpy() * 1000)
        return reply

    honest = weights(serve(make_grid(config), config))
    grid = make_grid(config)
    grid.nodes[10].change = amplify
    amplified = weights(serve(grid, replace(config, folder=str(tmp_path / "amplified"))))
    torch.testing.assert_close(amplified, honest, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_personal_layers_are_never_sent(make_grid: MakeGrid, config: FederationConfig) -> None:
    settings = f"{COMMON} algorithm=fedper algorithm.head_layers=1 model=lenet model.width=4"
    config, sizes = replace(config, settings=settings), set()
    grid = make_grid(config)

    def record_size(task: Message, reply: Message) -> Message:
        if task.metadata.message_type == "train":
            sizes.add(reply.content.array_records["update"]["values"].shape)
        return reply

    grid.nodes[10].change = record_size
    flat = FlatModel(serve(grid, config).model)
    head = HeadLayers(1).parameter_names(flat.module)
    head_size = sum(torch.Size(shape).numel() for name, shape in flat.shapes.items() if name in head)
    assert sizes == {(flat.num_shared - head_size,)}
    assert head_size > 0
    assert list(grid.nodes[10].context.state) == ["state-1", "state-2"]
