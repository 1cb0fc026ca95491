"""A client that misbehaves is rejected, counted and named, and the run is the one that the others would have had."""

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

from manyeyes.flower.app import FederationConfig
from manyeyes.flower.messages import CONFIG
from manyeyes.flower.server import serve
from manyeyes.models.flat import FlatModel
from manyeyes.training.result import Result

SETTINGS = "model=linear rounds=2 algorithm.cohort_size=4 algorithm.batch_size=3 algorithm.lr=0.05 evaluate_every=0 engine.device=cpu"
BAD_NODE = 12  # its user is called 2
Misbehaviour = Callable[[Message], Message | None]


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


def with_values(reply: Message, values: Any, name: str = "values") -> Message:
    array = values if isinstance(values, Array) else Array(np.asarray(values))
    reply.content["update"] = ArrayRecord({name: array})
    return reply


def with_config(reply: Message, **values: Any) -> Message:
    reply.content[CONFIG] = ConfigRecord(dict(reply.content[CONFIG]) | values)
    return reply


def with_counts(reply: Message, **counts: list[int]) -> Message:
    reply.content["counts"] = ArrayRecord({name: Array(np.array(values)) for name, values in counts.items()})
    return reply


def update_of(reply: Message) -> Any:
    values = reply.content.array_records["update"]["values"]
    return values.numpy()


def pickled(reply: Message) -> Array:
    file = io.BytesIO()
    np.save(file, np.array([print], dtype=object), allow_pickle=True)
    return Array("float32", update_of(reply).shape, "numpy.ndarray", file.getvalue())


def with_huge_header(reply: Message) -> Array:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": (10**15,)})
    return Array("float32", update_of(reply).shape, "numpy.ndarray", file.getvalue())


def with_one_infinity(reply: Message) -> Message:
    update = update_of(reply)
    return with_values(reply, np.where(np.arange(len(update)) == 3, np.inf, 0).astype("f4"))


def serialized_as(format: str) -> Misbehaviour:
    return lambda reply: with_values(reply, Array("float32", update_of(reply).shape, format, b"x"))


def without_arrays(reply: Message) -> Message:
    return Message(RecordDict({CONFIG: reply.content[CONFIG]}), reply_to=reply)


MISBEHAVIOURS: dict[str, tuple[Misbehaviour, str]] = {
    "no reply": (lambda r: None, "no reply within 0.2 seconds"),
    "NaN": (lambda r: with_values(r, update_of(r) * np.float32(math.nan)), "its update is not finite"),
    "one infinity": (with_one_infinity, "its update is not finite"),
    "1e10": (lambda r: with_values(r, np.full_like(update_of(r), 1e10)), "max_update_norm is 1e"),
    "wrong shape": (lambda r: with_values(r, update_of(r)[:-1]), "not float32"),
    "two dimensions": (lambda r: with_values(r, update_of(r)[None]), "not float32"),
    "wrong type": (lambda r: with_values(r, update_of(r).astype(np.float64)), "float64"),
    "wrong name": (lambda r: with_values(r, update_of(r), "other"), "the arrays other"),
    "pickle": (lambda r: with_values(r, pickled(r)), "header|type float32"),
    "other serialization": (serialized_as("pickle"), "the unsupported format 'pickle'"),
    "false header": (lambda r: with_values(r, with_huge_header(r)), "bytes that do not match its shape"),
    "no arrays": (without_arrays, "the arrays none"),
    "an empty reply": (lambda r: Message(RecordDict(), reply_to=r), "no config record"),
    "another round": (lambda r: with_config(r, round=7), "an update of round 8"),
    "another client": (lambda r: with_config(r, client_id=0), "as client 0"),
    "more images": (lambda r: with_config(r, num_examples=9000), "reports 9000 images, and reported 9 before"),
    "text for a number": (lambda r: with_config(r, loss="low"), "loss as str, not float"),
    "a loss of NaN": (lambda r: with_config(r, loss=math.nan), "out of range"),
    "a loss of 1e300": (lambda r: with_config(r, loss=1e300), "out of range"),
}


def when_training(misbehave: Misbehaviour) -> Callable[[Message, Message], Message | None]:
    """Return a change of training replies; a new message gets the reply metadata of the true one."""

    def change(task: Message, reply: Message) -> Message | None:
        if task.metadata.message_type != "train":
            return reply
        changed = misbehave(reply)
        return changed if changed is None or changed is reply else Message(changed.content, reply_to=task)

    return change


def weights(result: Result) -> torch.Tensor:
    return FlatModel(result.model).read()


@pytest.mark.fast_cases(
    "NaN", "1e10", "wrong shape", "pickle", "false header", "another round", "more images", "a loss of NaN"
)
@pytest.mark.parametrize(("misbehave", "reason"), MISBEHAVIOURS.values(), ids=MISBEHAVIOURS)
def test_a_client_that_misbehaves_is_rejected_and_named(
    make_grid: Callable[..., Any],
    config: FederationConfig,
    misbehave: Misbehaviour,
    reason: str,
    weights_without_it: torch.Tensor,
    capsys: pytest.CaptureFixture[str],
) -> None:
    grid = make_grid(config)
    grid.nodes[BAD_NODE].change = when_training(misbehave)
    result = serve(grid, config)
    assert torch.equal(weights(result), weights_without_it)
    events = [json.loads(line) for line in Path(config.folder, "metrics.jsonl").read_text().splitlines()]
    assert [event.get("rejected_clients") for event in events[1:]] == [["2"], ["2"]]
    assert all(re.search(reason, event["rejection_reasons"]["2"]) for event in events[1:])
    assert "round 2: 2 is rejected: " in capsys.readouterr().err


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
