from __future__ import annotations

import ssl
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Context, RecordDict

from manyeyes.core.population import Population
from manyeyes.data.store.reader import open_population
from manyeyes.flower.app import FederationConfig
from manyeyes.flower.client import USER_ID_COLUMN, store_path
from manyeyes.flower.keys import make_keys
from manyeyes.flower.split import split
from manyeyes.flower.training_spec import parse_settings

Command = Callable[..., Any]


def test_an_app_holds_all_settings_and_they_can_be_read_back(command: Command, tmp_path: Path) -> None:
    settings = ("algorithm=fedvc", "algorithm.cohort_size=3", "model=resnet18", "rounds=7")
    options = ("--num-clients", "3", "--reply-timeout", "30", "--stores", "some where")
    outcome = command("flower", "init", "app", *settings, *options)
    assert (outcome.code, outcome.out) == (0, "app: a Flower app. Run it with: flwr run app\n")
    app = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    config = FederationConfig.from_config(app["config"])
    assert config == FederationConfig(settings=" ".join(settings), num_clients=3, reply_timeout=30, stores="some where")
    assert parse_settings(config.settings).config.rounds == 7
    for component in app["components"].values():
        module = component.partition(":")[0].replace(".", "/")
        assert (tmp_path / "app" / f"{module}.py").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (("algorithm=fedsgd",), "Unknown algorithm 'fedsgd'"),
        (("algorithm=centralized",), "sampler=centralized needs all images in one place"),
        (("algorithm=ditto",), "personal_model=Ditto is only simulated"),
        (("algorithm=fedvc", "algorithm.replacement=true"), "sampler.replacement=true may draw a client twice"),
        (("privacy=local", "client_weighting=uniform"), "use privacy=central"),
        (("select_best_on=val",), "select_best_on chooses a model on images of the whole population"),
        (("--reply-timeout", "0"), "reply_timeout is 0.0: set it to a number above 0"),
        (("--min-clients", "0"), "min_clients is 0: set it to a whole number of at least 1"),
    ],
)
def test_settings_that_cannot_be_federated_are_refused_and_nothing_is_written(
    command: Command, tmp_path: Path, argv: tuple[str, ...], message: str
) -> None:
    outcome = command("flower", "init", "app", *argv)
    assert outcome.code == 2
    assert message in outcome.err
    assert not (tmp_path / "app").exists()


@pytest.mark.slow
def test_a_folder_that_is_not_empty_is_left_unchanged(command: Command, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for argv in (("init", "full"), ("keys", "full"), ("split", "full", "data.users=2", "data.images_per_user=4")):
        outcome = command("flower", *argv)
        assert (outcome.code, "full is not empty" in outcome.err) == (2, True)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]


def test_app_settings_of_an_unknown_name_or_type_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Unknown setting 'min_client' of the app \(did you mean 'min_clients'\?\)"):
        FederationConfig.from_config({"min_client": 3})
    with pytest.raises(ValueError, match="num_clients is 'three': set it to a whole number"):
        FederationConfig.from_config({"num_clients": "three"})
    assert FederationConfig.from_config({"reply_timeout": 3}).reply_timeout == 3.0


def test_split_writes_each_user_a_store_of_its_own_images_and_id(population: Population, tmp_path: Path) -> None:
    paths = split(population, tmp_path / "stores", "single", max_users=2)
    assert [path.name for path in paths] == ["000000", "000001"]
    opened, examples = open_population(paths[1], "single"), population.examples(1)
    assert opened.user_names is not None
    assert opened.user_names.tolist() == ["1"]
    assert np.array_equal(opened.pixels(np.arange(len(opened))), population.pixels(examples))
    assert opened.labels.targets(np.arange(8)).tolist() == population.labels.targets(examples).tolist()
    assert np.asarray(opened.columns[USER_ID_COLUMN]).tolist() == [1] * 8
    assert np.asarray(opened.columns["split"]).tolist() == ["train"] * 6 + ["test"] * 2


def test_a_simulated_node_opens_the_store_of_its_partition(stores: list[Path]) -> None:
    def node(**node_config: Any) -> Context:
        return Context(1, 1, node_config, RecordDict(), {})

    def partition(index: int) -> Context:
        return node(**{"partition-id": index, "num-partitions": 4})

    config = FederationConfig(stores=str(stores[0].parent))
    assert [store_path(partition(index), config) for index in range(4)] == stores
    with pytest.raises(ValueError, match="has 4 stores, and none for node 4"):
        store_path(partition(4), config)
    with pytest.raises(ValueError, match="This node has no store"):
        store_path(node(), FederationConfig())


def test_certificates_load_and_only_their_owner_may_read_keys(tmp_path: Path) -> None:
    paths = make_keys(tmp_path / "keys", 2, ["localhost", "127.0.0.1"])
    context = ssl.create_default_context(cafile=str(paths[0]))
    context.load_cert_chain(paths[1], paths[2])
    assert {path.name for path in paths} >= {"client-1", "client-1.pub", "client-2", "client-2.pub"}
    assert {path.stat().st_mode & 0o077 for path in paths} == {0}


def test_a_folder_name_that_is_too_long_is_shortened_in_one_sentence(command: Any) -> None:
    outcome = command("flower", "init", "1" * 5000, "algorithm=fedavg")
    assert outcome.code == 1
    assert outcome.err.endswith(f"manyeyes: {'1' * 80}...: File name too long: choose a shorter name\n")
