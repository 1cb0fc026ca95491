"""A real SuperLink and three SuperNodes on loopback, with TLS and authenticated nodes; and Flower's simulation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from manyeyes.cli.flower import federate
from manyeyes.config.build import build_model
from manyeyes.core.population import Ints, Population
from manyeyes.flower.config import parse_settings
from manyeyes.training.train import train

ROUNDS = 4
WORDS = (
    f"model=linear algorithm=scaffold rounds={ROUNDS} algorithm.cohort=3 algorithm.batch=3 algorithm.lr=0.05 "
    "evaluate_on=val engine.device=cpu engine.threads=1 checkpoint_seconds=0"  # and nobody holds a part called val
)
# Flower believes a killed node connected for two of its heartbeats: 10 seconds, the least, instead of 30.
QUICK = """from flwr.common import constant
constant.HEARTBEAT_DEFAULT_INTERVAL = 10
from flwr.supernode.cli import flower_supernode
flower_supernode()"""


@dataclass(frozen=True)
class InTurn:
    """Other users in every round."""

    rounds: Iterator[Sequence[int]]

    def select(self, population: Population, rng: np.random.Generator) -> Ints:
        return np.array(next(self.rounds))


def same_as_in_process(run: Path, crowd: Population, rounds: Sequence[Sequence[int]]) -> None:
    """The model in a run's folder, and the one that the rounds train here with these of the first three users."""
    recipe, theirs = parse_settings(WORDS), crowd.split("train")
    people = theirs.filter(theirs.owners(range(len(theirs))) < 3)
    module = build_model(recipe.config.model, people, recipe.augment, recipe.seed)
    options: dict[str, Any] = {"rounds": ROUNDS, "seed": recipe.seed, "engine": "reference", "device": "cpu"}
    algorithm = replace(recipe.algorithm, sampler=InTurn(iter(rounds)))
    expected = train(people, module, algorithm, test=people, **options).model.state_dict()
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
    options = f"--folder {run} --clients 3 --wait 200 --timeout 100 --least-clients 2"
    federate(["init", str(tmp_path / "app"), *WORDS.split(), *options.split()])

    tls = ("--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt", "--ssl-keyfile")
    trust = f'root-certificates = "{keys / "ca.crt"}"'
    link = processes.superlink(*tls, keys / "server.key", "--enable-supernode-auth", connection=trust)
    register = ("flwr", "supernode", "register")
    processes.finish(*[processes.start(f"key{k}.log", *register, keys / f"client-{k}.pub") for k in (1, 2, 3)])
    ports = processes.ports(4)

    def node(number: int, log: str, *command: object) -> subprocess.Popen[bytes]:
        who = ("--root-certificates", keys / "ca.crt", "--auth-supernode-private-key", keys / f"client-{number}")
        config = f'store="{stores[number - 1]}" keep="{tmp_path / "kept"}"'
        where = ("--superlink", f"127.0.0.1:{link}", "--port", ports[number - 1], "--node-config", config)
        started: subprocess.Popen[bytes] = processes.start(log, *(command or ("flower-supernode",)), *who, *where)
        return started

    def log(name: str) -> str:
        return (tmp_path / name).read_text()

    _, second, third = node(1, "node1.log"), node(2, "node2.log"), node(3, "node3.log", sys.executable, "-c", QUICK)
    stranger = node(4, "stranger.log")  # whose key nobody registered
    processes.finish(processes.start("run.log", "flwr", "run", tmp_path / "app", "trial"))

    processes.wait(lambda: "Start `flwr-clientapp`" in log("node3.log").partition("ROUND 2]")[2])
    processes.kill(third)  # SIGKILL, with the process that trains
    assert node(3, "refused.log").wait(100) != 0  # Flower still believes it connected
    processes.wait(lambda: len(processes.events(run)) > 2)  # until round 2 ends without it
    os.killpg(second.pid, signal.SIGSTOP)  # so that round 3 does not end before the third is back
    node(3, "again.log")
    processes.wait(lambda: "SuperNode ID" in log("again.log"))
    os.killpg(second.pid, signal.SIGCONT)
    processes.wait(lambda: (run / "model.safetensors").exists())

    for refused in (log("refused.log"), log("stranger.log")):
        assert "Failed to activate SuperNode" in refused
    assert stranger.wait(100) != 0
    told = [(event["clients"], event.get("left_out")) for event in processes.events(run)[1:]]
    assert told == [(3, None), (3, ["2"]), (3, ["2"]), (3, None)]
    why = [event["why"]["2"] for event in processes.events(run)[2:4]]
    assert "Node Unavailable" in why[0]
    assert why[1] == "2 is not connected"
    same_as_in_process(run, crowd, [(0, 1, 2), (0, 1), (0, 1), (0, 1, 2)])


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
    same_as_in_process(run, crowd, [(0, 1, 2)] * ROUNDS)
