"""Users' accuracies with BatchNorm statistics of the test batches, compared with the learned statistics.

    python benchmarks/batch_statistics.py RUN [RUN ...] [--batch 128] [--record FILE]

RUN is the folder of a finished run of a model with live BatchNorm. We evaluate with learned statistics. Code that never
calls `eval()`, such as FedPer's baseline, uses those of the batch, which usually gives higher accuracies: a client's
test images have few classes. Batches are consecutive test images of a client. The folder is not changed.
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
from manyeyes.training.description import environment
from manyeyes.training.run_folder import RunFolder


class LiveNorm(nn.BatchNorm2d):
    """A BatchNorm2d that always uses the batch's statistics, and does not update its own."""

    def train(self, mode: bool = True) -> LiveNorm:
        self.training, self.momentum = True, 0.0
        return self


def user_means(folder: Path, batch_size: int, device: torch.device) -> dict[str, float]:
    """Return the mean over users of their accuracy, with learned statistics and with those of batches."""
    config = read_settings(folder)
    population = build_population(config)
    preprocess, algorithm = build_preprocess(config), build_algorithm(config)
    module = build_model(config, population).to(device)
    test = load_to_device(population.split(config["eval_split"]), device)
    checkpoint = load(RunFolder(folder).checkpoint, device)
    with closing(
        ClientStateStore(RunFolder(folder).client_states, device, 2**40, checkpoint.clients, writes=False)
    ) as clients:
        flat = FlatModel(module)
        personal = algorithm.personal_layers.parameter_names(module) if algorithm.personal_layers else set()
        mask = flat.mask(personal.__contains__)
        results = {}
        for name in ("learned", "of batches"):
            evaluator = LocalEvaluator(
                flat, test, preprocess, device, config["engine"]["precision"], batch_size=batch_size
            )
            score = (
                evaluator.evaluate_personal_layers(checkpoint.state.weights, mask, clients)
                if personal
                else evaluator.evaluate_personal_models(
                    (user, checkpoint.state.weights) for user in test.user_ids.tolist()
                )
            )
            results[name] = float(score.compute()["user_mean"])
            for layer in module.modules():
                if isinstance(layer, nn.BatchNorm2d):
                    layer.__class__ = LiveNorm
    return results


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--record", type=Path)
    args = parser.parse_args(argv)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    rows = []
    for folder in args.runs:
        rows.append({"run": folder.name, "batch": args.batch, "user_mean": user_means(folder, args.batch, device)})
        print(f"{folder.name}: {rows[-1]['user_mean']}", flush=True)
    if args.record:
        args.record.write_text(json.dumps({**environment(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
