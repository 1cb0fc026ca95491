"""A real SuperLink and three SuperNodes on loopback, with TLS and authenticated nodes; and Flower's simulation."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from manyeyes.conf.build import build_model
from manyeyes.federation.command import federate
from manyeyes.federation.rules import read_recipe
from manyeyes.population import Population
from manyeyes.run.training import train

ROUNDS = 3
WORDS = (
    f"model=linear algorithm=scaffold rounds={ROUNDS} algorithm.cohort=3 algorithm.batch=3 algorithm.lr=0.05 "
    "evaluate_on=val engine.device=cpu engine.threads=1 checkpoint_seconds=0"  # and nobody holds a part called val
)


def same_as_in_process(run: Path, crowd: Population) -> None:
    """The model in a run's folder, and the one that the rounds train here with the first three users."""
    recipe, theirs = read_recipe(WORDS), crowd.split("train")
    people = theirs.where(theirs.owners(range(len(theirs))) < 3)
    module = build_model(recipe.config.model, people, recipe.augment, recipe.seed)
    options: dict[str, Any] = {"rounds": ROUNDS, "seed": recipe.seed, "engine": "reference", "device": "cpu"}
    expected = train(people, module, recipe.algorithm, test=people, **options).model.state_dict()
    assert max((tensor - module.state_dict()[name]).abs().max() for name, tensor in expected.items()) > 1e-2
    found = load_file(run / "model.safetensors")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.timeout(600)
def test_three_nodes_with_tls_and_authentication_train_what_one_process_does(
    crowd: Population, stores: list[Path], tmp_path: Path, processes: Any
) -> None:
    run, keys = tmp_path / "run", tmp_path / "keys"
    federate(["keys", str(keys), "--clients", "4"])
    options = f"--folder {run} --clients 3 --wait 200 --timeout 100 --least-clients 3 --repeats 60 --pause 2"
    federate(["init", str(tmp_path / "app"), *WORDS.split(), *options.split()])

    tls = ("--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt", "--ssl-keyfile")
    trust = f'root-certificates = "{keys / "ca.crt"}"'
    link = processes.superlink(*tls, keys / "server.key", "--enable-supernode-auth", connection=trust)
    register = ("flwr", "supernode", "register")
    processes.finish(*[processes.start(f"key{k}.log", *register, keys / f"client-{k}.pub") for k in (1, 2, 3)])
    ports = processes.ports(4)

    def node(number: int, log: str) -> subprocess.Popen[bytes]:
        who = ("--root-certificates", keys / "ca.crt", "--auth-supernode-private-key", keys / f"client-{number}")
        config = f'store="{stores[number - 1]}" keep="{tmp_path / "kept"}"'
        where = ("--superlink", f"127.0.0.1:{link}", "--port", ports[number - 1], "--node-config", config)
        started: subprocess.Popen[bytes] = processes.start(log, "flower-supernode", *who, *where)
        return started

    nodes = [node(number, f"node{number}.log") for number in (1, 2, 3)]
    stranger = node(4, "stranger.log")  # whose key nobody registered
    processes.finish(processes.start("run.log", "flwr", "run", tmp_path / "app", "trial"))

    processes.wait(lambda: len(processes.events(run)) > 1)  # round 0, then round 1
    nodes[2].terminate()
    nodes[2].wait(100)
    processes.kill(nodes[2])  # with what it started
    node(3, "node3_again.log")  # round 2 is repeated until it is back
    processes.wait(lambda: (run / "model.safetensors").exists())

    assert stranger.wait(100) != 0
    assert "Failed to activate SuperNode" in (tmp_path / "stranger.log").read_text()
    told = [(event["clients"], event.get("left_out")) for event in processes.events(run)[1:]]
    assert told == [(3, None)] * ROUNDS
    assert "Sent successfully" in (tmp_path / "node3_again.log").read_text()
    same_as_in_process(run, crowd)


@pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation needs Ray: pip install 'flwr[simulation]'")
@pytest.mark.timeout(600)
def test_flwr_run_simulates_the_same_app(crowd: Population, stores: list[Path], tmp_path: Path, processes: Any) -> None:
    run = tmp_path / "run"
    options = f"--folder {run} --clients 3 --wait 200 --timeout 100 --stores {stores[0].parent}"
    federate(["init", str(tmp_path / "app"), *WORDS.split(), *options.split()])
    processes.superlink("--insecure", "--simulation", connection="insecure = true")
    nodes = ("--federation-config", "num-supernodes=3")
    processes.finish(processes.start("run.log", "flwr", "run", tmp_path / "app", "trial", *nodes))
    processes.wait(lambda: (run / "model.safetensors").exists())
    same_as_in_process(run, crowd)
