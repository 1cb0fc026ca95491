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

from manyeyes.cli.flower import main as flower
from manyeyes.config.build import build_model
from manyeyes.core.population import Ints, Population
from manyeyes.flower.training_spec import parse_settings
from manyeyes.training.train import train

ROUNDS = 4
SETTINGS = (
    f"model=linear algorithm=scaffold rounds={ROUNDS} algorithm.cohort_size=3 algorithm.batch_size=3 algorithm.lr=0.05 "
    "eval_split=val engine.device=cpu engine.threads=1 checkpoint_seconds=0"  # no client has a split called val
)
# Flower takes a killed node for connected for two heartbeats: of 10 seconds, the minimum, instead of 30.
QUICK_NODE = """from flwr.common import constant
constant.HEARTBEAT_DEFAULT_INTERVAL = 10
from flwr.supernode.cli import flower_supernode
flower_supernode()"""


@dataclass(frozen=True)
class ListedCohorts:
    """The given users in each round."""

    rounds: Iterator[Sequence[int]]

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        return np.array(next(self.rounds))


def assert_trained_as_in_process(run: Path, population: Population, rounds: Sequence[Sequence[int]]) -> None:
    """Compare the model in a run folder with one trained here, with these of the first three users in each round."""
    spec, train_split = parse_settings(SETTINGS), population.split("train")
    members = train_split.filter(train_split.owners(range(len(train_split))) < 3)
    module = build_model(spec.config, members)
    options: dict[str, Any] = {"rounds": ROUNDS, "seed": spec.config.seed, "engine": "reference", "device": "cpu"}
    algorithm = replace(spec.algorithm, sampler=ListedCohorts(iter(rounds)))
    expected = train(members, module, algorithm, test=members, **options).model.state_dict()
    assert max((tensor - module.state_dict()[name]).abs().max() for name, tensor in expected.items()) > 1e-2
    trained = load_file(run / "model.safetensors")
    assert expected.keys() == trained.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(trained[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_nodes_with_tls_and_authentication_train_what_one_process_does(
    population: Population, stores: list[Path], tmp_path: Path, processes: Any
) -> None:
    run, keys = tmp_path / "run", tmp_path / "keys"
    flower(["keys", str(keys), "--clients", "4"])
    options = f"--folder {run} --num-clients 3 --join-timeout 200 --reply-timeout 100 --min-clients 2"
    flower(["init", str(tmp_path / "app"), *SETTINGS.split(), *options.split()])

    tls = ("--ssl-ca-certfile", keys / "ca.crt", "--ssl-certfile", keys / "server.crt", "--ssl-keyfile")
    trust = f'root-certificates = "{keys / "ca.crt"}"'
    link = processes.superlink(*tls, keys / "server.key", "--enable-supernode-auth", connection=trust)
    register = ("flwr", "supernode", "register")
    processes.finish(*[processes.start(f"key{k}.log", *register, keys / f"client-{k}.pub") for k in (1, 2, 3)])
    ports = processes.ports(4)

    def node(number: int, log: str, *command: object) -> subprocess.Popen[bytes]:
        identity = ("--root-certificates", keys / "ca.crt", "--auth-supernode-private-key", keys / f"client-{number}")
        config = f'store="{stores[number - 1]}" state_dir="{tmp_path / "states"}"'
        connection = ("--superlink", f"127.0.0.1:{link}", "--port", ports[number - 1], "--node-config", config)
        started: subprocess.Popen[bytes] = processes.start(
            log, *(command or ("flower-supernode",)), *identity, *connection
        )
        return started

    def log(name: str) -> str:
        return (tmp_path / name).read_text()

    _, second, third = (
        node(1, "node1.log"),
        node(2, "node2.log"),
        node(3, "node3.log", sys.executable, "-c", QUICK_NODE),
    )
    unregistered = node(4, "unregistered.log")  # its key is not registered
    processes.finish(processes.start("run.log", "flwr", "run", tmp_path / "app", "trial"))

    processes.wait(lambda: "Start `flwr-clientapp`" in log("node3.log").partition("ROUND 2]")[2])
    processes.kill(third)  # SIGKILL, with the process that trains
    assert node(3, "refused.log").wait(100) != 0  # Flower still takes it for connected
    processes.wait(lambda: len(processes.events(run)) > 2)  # until round 2 ends without it
    os.killpg(second.pid, signal.SIGSTOP)  # so that round 3 does not end before the third is back
    node(3, "again.log")
    processes.wait(lambda: "SuperNode ID" in log("again.log"))
    os.killpg(second.pid, signal.SIGCONT)
    processes.wait(lambda: (run / "model.safetensors").exists())

    for refused in (log("refused.log"), log("unregistered.log")):
        assert "Failed to activate SuperNode" in refused
    assert unregistered.wait(100) != 0
    taking_part = [(event["num_clients"], event.get("rejected_clients")) for event in processes.events(run)[1:]]
    assert taking_part == [(3, None), (3, ["2"]), (3, ["2"]), (3, None)]
    reasons = [event["rejection_reasons"]["2"] for event in processes.events(run)[2:4]]
    assert "Node Unavailable" in reasons[0]
    assert reasons[1] == "2 is not connected"
    assert_trained_as_in_process(run, population, [(0, 1, 2), (0, 1), (0, 1), (0, 1, 2)])


@pytest.mark.skipif(find_spec("ray") is None, reason="Flower's simulation needs Ray: pip install 'flwr[simulation]'")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_flwr_run_simulates_the_same_app(
    population: Population, stores: list[Path], tmp_path: Path, processes: Any
) -> None:
    run = tmp_path / "run"
    options = f"--folder {run} --num-clients 3 --join-timeout 200 --reply-timeout 100 --stores {stores[0].parent}"
    flower(["init", str(tmp_path / "app"), *SETTINGS.split(), *options.split()])
    processes.superlink("--insecure", "--simulation", connection="insecure = true")
    nodes = ("--federation-config", "num-supernodes=3")
    processes.finish(processes.start("run.log", "flwr", "run", tmp_path / "app", "trial", *nodes))
    processes.wait(lambda: (run / "model.safetensors").exists())
    assert_trained_as_in_process(run, population, [(0, 1, 2)] * ROUNDS)
