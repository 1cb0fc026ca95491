"""Users' accuracies with the statistics of test batches in BatchNorm, beside those with the statistics it has learned.

    python benchmarks/batch_statistics.py RUN [RUN ...] [--batch 128] [--record FILE]

RUN is the folder of a finished run of a model with live BatchNorm. Ours evaluates with learned statistics; who never
calls `eval()`, as FedPer's baseline, takes those of the batch, which mostly flatters: a client's test images share its
few classes. Batches are cut from each client's own test images, in order. Nothing in the folder changes.
"""

from __future__ import annotations

import argparse
import json
from contextlib import closing
from pathlib import Path

import torch
from torch import nn

from manyeyes.config.build import build_algorithm, build_model, build_population, build_preprocess
from manyeyes.config.run import read_settings
from manyeyes.engines.evaluation import LocalEvaluator
from manyeyes.engines.images import load_to_device
from manyeyes.models.flat import FlatModel
from manyeyes.training.checkpoint import load
from manyeyes.training.client_state import ClientStateStore
from manyeyes.training.environment import environment
from manyeyes.training.run_folder import RunFolder


class LiveNorm(nn.BatchNorm2d):
    """A BatchNorm2d that is always training, and does not move its statistics."""

    def train(self, mode: bool = True) -> LiveNorm:
        self.training, self.momentum = True, 0.0
        return self


def means(folder: Path, batch: int, device: torch.device) -> dict[str, float]:
    """The mean over users of each one's own accuracy, with learned statistics and with those of batches."""
    config = read_settings(folder)
    population = build_population(config)
    augment, algorithm = build_preprocess(config), build_algorithm(config)
    module = build_model(config, population).to(device)
    test = load_to_device(population.split(config["eval_split"]), device)
    found = load(RunFolder(folder).checkpoint, device)
    with closing(
        ClientStateStore(RunFolder(folder).client_states, device, 2**40, found.clients, writes=False)
    ) as clients:
        flat = FlatModel(module)
        own = algorithm.personal_layers.parameter_names(module) if algorithm.personal_layers else set()
        mask = flat.mask(own.__contains__)
        results = {}
        for name in ("learned", "of batches"):
            evaluator = LocalEvaluator(flat, test, augment, device, config["engine"]["precision"], batch_size=batch)
            score = (
                evaluator.evaluate_personal_layers(found.state.weights, mask, clients)
                if own
                else evaluator.evaluate_personal_models((user, found.state.weights) for user in test.user_ids.tolist())
            )
            results[name] = float(score.compute()["user_mean"])
            for child in module.modules():
                if isinstance(child, nn.BatchNorm2d):
                    child.__class__ = LiveNorm
    return results


def main(given_words: list[str] | None = None) -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    words.add_argument("--batch", type=int, default=128)
    words.add_argument("--record", type=Path)
    given = words.parse_args(given_words)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for folder in given.runs:
        rows.append({"run": folder.name, "batch": given.batch, "user_mean": means(folder, given.batch, device)})
        print(f"{folder.name}: {rows[-1]['user_mean']}", flush=True)
    if given.record:
        given.record.write_text(json.dumps({**environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
