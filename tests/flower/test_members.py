"""Who is let in: what clients say of themselves at the start of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import ConfigRecord, Message

from manyeyes.flower.config import FederationConfig
from manyeyes.flower.members import ClientInfo, Members, resolve_members
from manyeyes.flower.registry import ClientRegistry
from manyeyes.flower.server import serve

WORDS = "model=linear rounds=1 algorithm.cohort=2 algorithm.batch=3 evaluate_every=0 engine.device=cpu"
WHAT = (("red", "green"), False, 8, 8)
Make = Callable[..., Any]


@pytest.fixture
def rules(tmp_path: Path) -> FederationConfig:
    return FederationConfig(
        settings=WORDS, folder=str(tmp_path / "run"), join_timeout=0, timeout=0.2, retry_delay=0.01, max_examples=50
    )


def saying(**words: Any) -> Callable[[Message, Message], Message]:
    def change(task: Message, answer: Message) -> Message:
        if task.metadata.message_type == "query":
            answer.content["about"] = ConfigRecord(dict(answer.content["about"]) | words)
        return answer

    return change


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ({"examples": 10**12}, "it says that it holds 1,000,000,000,000 photos, and most_examples is 50"),
        ({"examples": 0}, "it holds no photos to train on"),
        ({"examples": -3}, "it holds no photos to train on"),
        ({"examples": 4.0}, "examples is float, not int"),
        ({"name": ""}, "its name is empty"),
        ({"name": "a\nb"}, "not printable"),
        ({"name": "1"}, "1: another client has this name already"),
        ({"classes": ["red", "green"]}, "its classes or image size are not those of the others"),
        ({"height": 10**9}, "its images are 1000000000 x 8"),
    ],
)
def test_one_that_cannot_be_believed_is_not_let_in(
    federation: Make, rules: FederationConfig, words: dict[str, Any], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = federation(rules)
    grid.nodes[12].change = saying(**words)
    members = ClientRegistry(grid, rules, counts=False).wait_for_clients(3)
    assert [m.name for m in members.all] == ["0", "1", "3"]
    assert reason in capsys.readouterr().err


def test_counts_of_classes_are_told_only_if_the_algorithm_asks(federation: Make, rules: FederationConfig) -> None:
    told: list[set[str]] = []

    def listening(task: Message, answer: Message) -> Message:
        told.append(set(answer.content["about"]))
        return answer

    for words in ("algorithm=fedavg", "algorithm=fedir"):
        grid = federation(replace(rules, settings=f"{WORDS} {words}"))
        grid.nodes[10].change = listening
        ClientRegistry(grid, rules, counts=words.endswith("fedir")).wait_for_clients(4)
    assert "counts" not in told[0]
    assert "counts" in told[1]


def test_false_counts_of_classes_are_refused(
    federation: Make, rules: FederationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = federation(replace(rules, settings=f"{WORDS} algorithm=fedir"))
    grid.nodes[12].change = saying(counts=[100, 0, 0])
    ClientRegistry(grid, rules, counts=True).wait_for_clients(3)
    assert "its counts of classes are not those of 9 photos" in capsys.readouterr().err


def test_a_run_with_too_few_clients_does_not_start(federation: Make, rules: FederationConfig) -> None:
    with pytest.raises(ValueError, match="4 good clients came within 0 seconds, and 5 are needed"):
        serve(federation(rules), replace(rules, clients=5))
    assert not Path(rules.folder).exists()


def test_an_impostor_does_not_take_the_place_of_a_client_that_is_there(
    federation: Make, rules: FederationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = federation(rules)
    roll = ClientRegistry(grid, rules, counts=False)
    late = grid.nodes.pop(13)
    roll.wait_for_clients(3)
    grid.nodes[13] = late
    grid.nodes[13].change = saying(name="0", examples=4)
    assert roll.connected() == {0: 10, 1: 11, 2: 12}
    assert "0: another client that is connected has this name" in capsys.readouterr().err
    del grid.nodes[10]
    assert roll.connected() == {1: 11, 2: 12, 0: 13}  # as far as names can tell: authenticate nodes


def test_one_that_comes_after_the_start_is_named_and_not_in_the_run(
    federation: Make, rules: FederationConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = federation(rules)
    roll = ClientRegistry(grid, rules, counts=False)
    late = grid.nodes.pop(13)
    roll.wait_for_clients(3)
    grid.nodes[13] = late
    assert roll.connected() == {0: 10, 1: 11, 2: 12}
    assert "3: it came after the start" in capsys.readouterr().err


def test_numbers_of_the_whole_population_are_kept_else_names_are_counted() -> None:
    said = {7: ClientInfo("user10", 40, 3, 0, WHAT, (1, 2)), 8: ClientInfo("user9", 41, 5, 1, WHAT, (5, 0))}
    members, nodes, _ = resolve_members(said)
    assert [(m.name, m.key) for m in members.all] == [("user10", 40), ("user9", 41)]
    assert nodes == {7: 40, 8: 41}
    assert members.target == (0.75, 0.25)  # 6 and 2 of 8
    members, nodes, _ = resolve_members({node: replace(one, number=-1) for node, one in said.items()})
    assert [(m.name, m.key) for m in members.all] == [("user9", 0), ("user10", 1)]
    assert nodes == {8: 0, 7: 1}
    assert Members.from_infos(members.describe()) == members
    assert members.population().num_examples.tolist() == [5, 3]
    assert members.population(tests=True).num_examples.tolist() == [1]
