"""A client that misbehaves is left out, counted and named, and the run is the one that the others would have had."""

from __future__ import annotations

import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from manyeyes.flower.config import FederationConfig
from manyeyes.flower.server import serve
from manyeyes.models.flat import FlatModel
from manyeyes.training.result import Result

WORDS = (
    "model=linear rounds=2 algorithm.cohort=4 algorithm.batch=3 algorithm.lr=0.05 evaluate_every=0 engine.device=cpu"
)
BAD = 12  # the node that misbehaves; its user is called 2


def rules_in(folder: Path) -> FederationConfig:
    return FederationConfig(
        settings=WORDS, folder=str(folder), clients=4, join_timeout=5, timeout=0.2, retry_delay=0.01, max_retries=1
    )


@pytest.fixture
def rules(tmp_path: Path) -> FederationConfig:
    return rules_in(tmp_path / "run")


@pytest.fixture(scope="module")
def good(federation: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    """What the others train when one is silent."""
    rules = rules_in(tmp_path_factory.mktemp("silent") / "run")
    grid = federation(rules)
    grid.nodes[BAD].change = changed(lambda answer: None)
    return weights(serve(grid, rules))


def with_values(answer: Message, values: Any, name: str = "values") -> Message:
    array = values if isinstance(values, Array) else Array(np.asarray(values))
    answer.content["update"] = ArrayRecord({name: array})
    return answer


def with_word(answer: Message, **words: Any) -> Message:
    answer.content["about"] = ConfigRecord(dict(answer.content["about"]) | words)
    return answer


def numbers(answer: Message) -> Any:
    return answer.content["update"]["values"].numpy()


def pickled(answer: Message) -> Array:
    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    return Array("float32", numbers(answer).shape, "numpy.ndarray", file.getvalue())


def huge_header(answer: Message) -> Array:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**15,)})
    return Array("float32", numbers(answer).shape, "numpy.ndarray", file.getvalue())


MISCHIEF: dict[str, tuple[Callable[[Message], Message | None], str]] = {
    "does not answer": (lambda a: None, "no answer within 0.2 seconds"),
    "sends NaN": (lambda a: with_values(a, numbers(a) * np.float32(math.nan)), "numbers that are not finite"),
    "sends one infinity": (
        lambda a: with_values(a, np.where(np.arange(len(numbers(a))) == 3, np.inf, 0).astype("f4")),
        "numbers that are not finite",
    ),
    "sends 1e10": (lambda a: with_values(a, np.full_like(numbers(a), 1e10)), "most_length is 1e"),
    "wrong shape": (lambda a: with_values(a, numbers(a)[:-1]), "not float32"),
    "two dimensions": (lambda a: with_values(a, numbers(a)[None]), "not float32"),
    "wrong type": (lambda a: with_values(a, numbers(a).astype(np.float64)), "float64"),
    "wrong name": (lambda a: with_values(a, numbers(a), "other"), "the arrays other"),
    "pickle": (lambda a: with_values(a, pickled(a)), "header|type float32"),
    "other serialisation": (
        lambda a: with_values(a, Array("float32", numbers(a).shape, "pickle", b"x")),
        "'pickle', which is not read",
    ),
    "lying header": (lambda a: with_values(a, huge_header(a)), "bytes that are not its"),
    "no arrays": (lambda a: Message(RecordDict({"about": a.content["about"]}), reply_to=a), "the arrays none"),
    "nothing": (lambda a: Message(RecordDict(), reply_to=a), "no proper answer"),
    "another round": (lambda a: with_word(a, round=7), "an update of round 8"),
    "another client": (lambda a: with_word(a, key=0), "as client 0"),
    "more photos": (lambda a: with_word(a, examples=9000), "holds 9000 photos, and it held 9"),
    "words for numbers": (lambda a: with_word(a, loss="low"), "loss is str, not float"),
    "a loss of NaN": (lambda a: with_word(a, loss=math.nan), "no sensible number"),
    "a loss of 1e300": (lambda a: with_word(a, loss=1e300), "no sensible number"),
}


def changed(bad: Callable[[Message], Message | None]) -> Callable[[Message, Message], Message | None]:
    """Only where the client trains: an answer without reply metadata of its own gets that of the true one."""

    def change(task: Message, answer: Message) -> Message | None:
        if task.metadata.message_type != "train":
            return answer
        found = bad(answer)
        if found is not None and found is not answer:
            found = Message(found.content, reply_to=task)
        return found

    return change


def weights(result: Result) -> torch.Tensor:
    return FlatModel(result.model).read()


@pytest.mark.parametrize(("bad", "reason"), MISCHIEF.values(), ids=MISCHIEF)
def test_one_who_misbehaves_is_left_out_and_named(
    federation: Callable[..., Any],
    rules: FederationConfig,
    bad: Callable[[Message], Message | None],
    reason: str,
    good: torch.Tensor,
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = federation(rules)
    grid.nodes[BAD].change = changed(bad)
    found = serve(grid, rules)
    assert torch.equal(weights(found), good)
    events = [json.loads(line) for line in Path(rules.folder, "metrics.jsonl").read_text().splitlines()]
    assert [event.get("left_out") for event in events[1:]] == [["2"], ["2"]]
    assert all(re.search(reason, event["why"]["2"]) for event in events[1:])
    assert "round 2: 2 is left out: " in capsys.readouterr().err


def test_an_answer_that_cannot_be_read_hides_no_other(
    federation: Callable[..., Any], rules: FederationConfig, good: torch.Tensor
) -> None:
    grid = federation(rules)
    grid.nodes[BAD].change = changed(lambda answer: [grid.unreadable.add(BAD), answer][1])
    found = serve(grid, rules)
    assert torch.equal(weights(found), good)
    assert found.events[1]["why"] == {"2": "2 is left out: its answer could not be read: these bytes are no message"}


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (lambda a: with_counts(a, correct=[9, 0, 0], count=[2, 0, 0]), "its counts are not those of the 2 photos"),
        (lambda a: with_counts(a, correct=[90, 0, 0], count=[90, 0, 0]), "its counts are not those of the 2 photos"),
        (lambda a: with_counts(a, correct=[-1, 0, 0], count=[2, 0, 0]), "its counts are not those of the 2 photos"),
        (lambda a: with_counts(a, correct=[1, 0], count=[2, 0]), "not int64 [3]"),
        (lambda a: with_word(a, loss=math.inf), "its loss is no sensible number"),
    ],
)
def test_a_false_evaluation_counts_for_nothing(
    federation: Callable[..., Any],
    rules: FederationConfig,
    bad: Callable[[Message], Message],
    reason: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = federation(rules)
    grid.nodes[BAD].change = lambda task, answer: bad(answer) if task.metadata.message_type == "evaluate" else answer
    assert serve(grid, rules).final["examples"] == 6  # of three clients, two each
    told = capsys.readouterr().err
    assert "evaluation: 2 is left out: " in told
    assert reason in told


def with_counts(answer: Message, **counts: list[int]) -> Message:
    answer.content["counts"] = ArrayRecord({name: Array(np.array(values)) for name, values in counts.items()})
    return answer
