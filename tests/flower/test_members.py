"""Which clients become members: what they report about themselves at the start of a run is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from manyeyes.flower.app import FederationConfig
from manyeyes.flower.members import ClientInfo, DataFormat, Member, Members, resolve_members
from manyeyes.flower.messages import CONFIG
from manyeyes.flower.registry import ClientRegistry
from manyeyes.flower.server import serve

SETTINGS = "model=linear rounds=1 algorithm.cohort_size=2 algorithm.batch_size=3 evaluate_every=0 engine.device=cpu"
DATA = DataFormat(("red", "green"), False, 8, 8)
MakeGrid = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path) -> FederationConfig:
    folder = str(tmp_path / "run")
    return FederationConfig(SETTINGS, folder, join_timeout=0, reply_timeout=0.2, retry_delay=0.01, max_examples=50)


def report(**values: Any) -> Callable[[Message, Message], Message]:
    """Return a change of a node's replies: it reports these values about itself."""

    def change(task: Message, reply: Message) -> Message:
        if task.metadata.message_type == "query":
            reply.content[CONFIG] = ConfigRecord(dict(reply.content[CONFIG]) | values)
        return reply

    return change


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"num_examples": 10**12}, "it reports 1,000,000,000,000 images, and max_examples is 50"),
        ({"num_examples": 0}, "it has no training images"),
        ({"num_examples": -3}, "it has no training images"),
        ({"num_examples": 4.0}, "num_examples as float, not int"),
        ({"name": ""}, "its name is empty"),
        ({"name": "a\nb"}, "not printable"),
        ({"name": "1"}, "1: another client has this name"),
        ({"classes": ["red", "green"]}, "its classes or image size differ from those of the other clients"),
        ({"height": 10**9}, "it reports images of 1000000000 x 8 pixels"),
    ],
)
def test_a_client_that_reports_impossible_values_is_rejected(
    make_grid: MakeGrid,
    config: FederationConfig,
    values: dict[str, Any],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = make_grid(config)
    grid.nodes[12].change = report(**values)
    registry = ClientRegistry(grid, config, needs_class_counts=False)
    registry.wait_for_clients(3)
    assert [m.name for m in registry.members.all] == ["0", "1", "3"]
    assert reason in capsys.readouterr().err


@pytest.mark.slow
def test_class_counts_are_reported_only_if_the_algorithm_needs_them(
    make_grid: MakeGrid, config: FederationConfig
) -> None:
    reported: list[set[str]] = []

    def record(task: Message, reply: Message) -> Message:
        reported.append(set(reply.content[CONFIG]))
        return reply

    for settings in ("algorithm=fedavg", "algorithm=fedir"):
        grid = make_grid(replace(config, settings=f"{SETTINGS} {settings}"))
        grid.nodes[10].change = record
        ClientRegistry(grid, config, needs_class_counts=settings.endswith("fedir")).wait_for_clients(4)
    assert "class_counts" not in reported[0]
    assert "class_counts" in reported[1]


def test_class_counts_that_do_not_add_up_are_rejected(
    make_grid: MakeGrid, config: FederationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = make_grid(replace(config, settings=f"{SETTINGS} algorithm=fedir"))
    grid.nodes[12].change = report(class_counts=[100, 0, 0])
    ClientRegistry(grid, config, needs_class_counts=True).wait_for_clients(3)
    assert "its class counts do not add up to its 9 training images" in capsys.readouterr().err


def test_a_run_with_too_few_clients_does_not_start(make_grid: MakeGrid, config: FederationConfig) -> None:
    with pytest.raises(ValueError, match="Only 4 of 5 clients joined within 0 seconds"):
        serve(make_grid(config), replace(config, num_clients=5))
    assert not Path(config.folder).exists()


def test_an_impostor_does_not_replace_a_connected_client(
    make_grid: MakeGrid, config: FederationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = make_grid(config)
    registry = ClientRegistry(grid, config, needs_class_counts=False)
    late = grid.nodes.pop(13)
    registry.wait_for_clients(3)
    grid.nodes[13] = late
    grid.nodes[13].change = report(name="0", num_examples=4)
    assert registry.connected() == {0: 10, 1: 11, 2: 12}
    assert "0: another connected client has this name" in capsys.readouterr().err
    del grid.nodes[10]
    assert registry.connected() == {1: 11, 2: 12, 0: 13}  # names alone cannot tell them apart: authenticate nodes


def test_a_client_that_returns_with_another_number_of_images_is_named_and_not_connected(
    make_grid: MakeGrid, config: FederationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = make_grid(config)
    registry = ClientRegistry(grid, config, needs_class_counts=False)
    registry.wait_for_clients(4)
    grid.nodes[99] = grid.nodes.pop(12)
    grid.nodes[99].change = report(num_examples=45)
    assert registry.connected() == {0: 10, 1: 11, 3: 13}
    reason = "2: its data has changed since the start of the run: it reports 45 images, and reported 9 before"
    assert reason in capsys.readouterr().err


def test_a_client_that_joins_after_the_start_is_named_and_not_in_the_run(
    make_grid: MakeGrid, config: FederationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = make_grid(config)
    registry = ClientRegistry(grid, config, needs_class_counts=False)
    late = grid.nodes.pop(13)
    registry.wait_for_clients(3)
    grid.nodes[13] = late
    assert registry.connected() == {0: 10, 1: 11, 2: 12}
    assert "3: it joined after the start" in capsys.readouterr().err


def test_client_ids_are_the_user_ids_of_the_whole_population_or_else_follow_the_names() -> None:
    reported = {7: Member("user10", 40, 3, 0), 8: Member("user9", 41, 5, 1)}
    infos = {7: ClientInfo(reported[7], DATA, (1, 2)), 8: ClientInfo(reported[8], DATA, (5, 0))}
    members, nodes, _ = resolve_members(infos, FederationConfig())
    assert [(m.name, m.client_id) for m in members.all] == [("user10", 40), ("user9", 41)]
    assert nodes == {40: 7, 41: 8}
    assert members.target_distribution == (0.75, 0.25)  # 6 and 2 of 8
    members, nodes, _ = resolve_members(
        {node: ClientInfo(replace(member, client_id=-1), DATA) for node, member in reported.items()}, FederationConfig()
    )
    assert [(m.name, m.client_id) for m in members.all] == [("user9", 0), ("user10", 1)]
    assert nodes == {0: 8, 1: 7}
    assert Members.from_dict(asdict(members)) == members
    assert members.population().num_examples.tolist() == [5, 3]
    assert members.population(test=True).num_examples.tolist() == [1]


@pytest.mark.parametrize(
    "change",
    [
        {"all": []},
        {"all": [{"name": "ann", "client_id": 0, "num_examples": {}, "num_test_examples": 0}]},
        {"all": [{"name": "ann", "client_id": "0", "num_examples": 1, "num_test_examples": 0}]},
        {"all": [{"name": ["ann"], "client_id": 0, "num_examples": 1, "num_test_examples": 0}]},
        {"all": [{"name": "ann", "client_id": 0, "num_examples": 2**53, "num_test_examples": 0}]},
        {"all": [{"name": name, "client_id": 0, "num_examples": 1, "num_test_examples": 0} for name in "ab"]},
        {"data": {"classes": ["red"], "multi": False, "height": -1, "width": 8}},
        {"target_distribution": 5},
    ],
)
def test_a_damaged_list_of_members_is_refused(change: dict[str, Any]) -> None:
    content = asdict(Members((Member("ann", 0, 1, 0),), DATA))
    assert Members.from_dict(content).by_id[0].name == "ann"
    with pytest.raises((TypeError, ValueError)):
        Members.from_dict(content | change)
