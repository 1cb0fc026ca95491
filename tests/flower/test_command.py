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
from manyeyes.data.store import reader as store
from manyeyes.flower.client import _store
from manyeyes.flower.config import FederationConfig, parse_settings
from manyeyes.flower.keys import make_keys
from manyeyes.flower.split import split

Command = Callable[..., Any]


def test_an_app_has_all_settings_and_flower_reads_them_back(command: Command, tmp_path: Path) -> None:
    words = ("algorithm=fedvc", "algorithm.cohort=3", "model=resnet18", "rounds=7")
    done = command("federate", "init", "app", "--clients", "3", *words, "--timeout", "30", "--stores", "some where")
    assert (done.code, done.out) == (0, "app: a Flower app; run it with: flwr run app\n")
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    app = project["tool"]["flwr"]["app"]
    rules = FederationConfig.from_config(app["config"])
    assert rules == FederationConfig(settings=" ".join(words), clients=3, timeout=30, stores="some where")
    assert parse_settings(rules.settings).config.rounds == 7
    for part in app["components"].values():
        module = part.partition(":")[0].replace(".", "/")
        assert (tmp_path / "app" / f"{module}.py").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("algorithm=fedsgd",), "algorithm 'fedsgd' is unknown"),
        (("algorithm=centralized",), "nothing to federate"),
        (("algorithm=ditto",), "Ditto is simulated only"),
        (("privacy=local", "algorithm.weigh=equally"), "use privacy=central"),
        (("best_on=val",), "best_on chooses a model on one population's photos"),
        (("--timeout", "0"), "timeout is 0.0: it must be above 0"),
        (("--least-clients", "0"), "least_clients is 0: it must be at least 1"),
    ],
)
def test_what_cannot_be_federated_is_refused_and_nothing_is_written(
    command: Command, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = command("federate", "init", "app", *words)
    assert done.code == 1
    assert sentence in done.err
    assert not (tmp_path / "app").exists()


def test_a_folder_that_holds_something_is_left_alone(command: Command, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    for words in (("init", "full"), ("keys", "full"), ("split", "full", "data.users=2", "data.images_per_user=4")):
        done = command("federate", *words)
        assert (done.code, "full is not empty" in done.err) == (1, True)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]


def test_rules_of_another_name_or_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="round is no setting of a federated run"):
        FederationConfig.from_config({"round": 3})
    with pytest.raises(ValueError, match="clients is 'three': it must be of type int"):
        FederationConfig.from_config({"clients": "three"})
    assert FederationConfig.from_config({"timeout": 3}).timeout == 3.0


def test_a_user_gets_a_store_of_its_own_photos_and_its_number(crowd: Population, tmp_path: Path) -> None:
    made = split(crowd, tmp_path / "stores", "single", most=2)
    assert [path.name for path in made] == ["000000", "000001"]
    people = store.open(made[1], "single")
    mine = crowd.examples(1)
    assert people.user_names is not None
    assert people.user_names.tolist() == ["1"]
    assert np.array_equal(people.pixels(np.arange(len(people))), crowd.pixels(mine))
    assert people.labels.targets(np.arange(8)).tolist() == crowd.labels.targets(mine).tolist()
    assert np.asarray(people.columns["user_number"]).tolist() == [1] * 8
    assert np.asarray(people.columns["split"]).tolist() == ["train"] * 6 + ["test"] * 2


def test_a_simulated_node_opens_the_store_of_its_number(stores: list[Path]) -> None:
    rules = FederationConfig(stores=str(stores[0].parent))
    found = [_store(Context(1, 1, {"partition-id": k, "num-partitions": 4}, RecordDict(), {}), rules) for k in range(4)]
    assert found == stores
    with pytest.raises(ValueError, match="holds 4 stores: there is none for node 4"):
        _store(Context(1, 1, {"partition-id": 4}, RecordDict(), {}), rules)
    with pytest.raises(ValueError, match="this node has no store"):
        _store(Context(1, 1, {}, RecordDict(), {}), FederationConfig())


def test_certificates_load_and_only_their_owner_may_read_keys(tmp_path: Path) -> None:
    made = make_keys(tmp_path / "keys", 2, ["localhost", "127.0.0.1"])
    context = ssl.create_default_context(cafile=str(made[0]))
    context.load_cert_chain(made[1], made[2])
    assert {path.name for path in made} >= {"client-1", "client-1.pub", "client-2", "client-2.pub"}
    assert {path.stat().st_mode & 0o077 for path in made} == {0}
