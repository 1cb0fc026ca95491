"""The callbacks of a run: those that every run has, and the user's."""

import math
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from manyeyes.core.registry import check_options, describe, option, register, suggestion
from manyeyes.engines.evaluation import Evaluator
from manyeyes.metrics import PERSONALIZED, result_info
from manyeyes.training.callbacks import Callback, TrainingRun
from manyeyes.training.example_images import example_images, sampled_examples
from manyeyes.training.headline import headline_metric, shared_metric
from manyeyes.training.result import Result
from manyeyes.training.run_files import (
    CLIENTS_FILE,
    EXAMPLE_IMAGES_FILE,
    PER_CLASS_FILE,
    PER_USER_FILE,
    PRIVACY_FILE,
    Event,
)
from manyeyes.training.run_folder import RunFolder
from manyeyes.training.score_tables import per_class_table, per_user_table
from manyeyes.training.withholding import are_training_users

AUTO = "auto"
SELECTION_LOSS = "selection_loss"  # of the current model, in the events of evaluated rounds


class BestModel(Callback):
    """The weights with the lowest loss so far; the checkpoint has them too."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator  # of the validation split
        self.loss, self.round, self.weights = math.inf, -1, torch.zeros(0)

    def on_evaluate_start(self, run: TrainingRun, event: Event) -> None:
        state = run.state
        loss = self._evaluator.evaluate_global(state.weights).mean_loss
        if loss < self.loss:
            self.loss, self.round, self.weights = loss, state.round, state.weights
        event[SELECTION_LOSS] = loss

    def state_dict(self) -> Mapping[str, Any]:
        return {"loss": self.loss, "round": self.round, "weights": self.weights}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.loss, self.round, self.weights = state["loss"], state["round"], state["weights"]


@register("callback", "early_stopping")
@dataclass
class EarlyStopping(Callback):
    """Stops the run when a metric has not improved over several evaluations."""

    metric: str = option(AUTO, "metric of an evaluation; auto: loss, of personalized models where clients have them")
    patience: int = option(5, "evaluations without an improvement after which the run stops", minimum=1)
    min_delta: float = option(0.0, "smallest change that counts as an improvement", minimum=0)
    mode: str = option(AUTO, "which value is best: max, min, or auto: by the metric", choices=(AUTO, "max", "min"))

    def __post_init__(self) -> None:
        check_options(self)

    def check_results(self, names: Collection[str]) -> None:
        """Raise ValueError if the metric is not among the results of an evaluation."""
        if names and self.metric not in (AUTO, *names):
            raise self._unknown_metric(names)

    def _unknown_metric(self, names: Collection[str]) -> ValueError:
        problem = f"callbacks.early_stopping.metric is {self.metric!r} and evaluations have no such metric"
        return ValueError(f"{problem}{suggestion(self.metric, names)}: set it to one of {', '.join(names)}.")

    def on_train_start(self, run: TrainingRun) -> None:
        self._best, self._num_without, self._metric = math.nan, 0, self.metric
        for event in run.events:  # of a resumed run
            self._choose_metric(event)
            if self._metric in event:
                self._update(run, event)
        self._check(run)

    def on_evaluate(self, run: TrainingRun, event: Event) -> None:
        self._choose_metric(event)
        if self._metric not in event:
            raise self._unknown_metric(event)
        self._update(run, event)
        self._check(run)

    def _choose_metric(self, event: Event) -> None:
        """Choose the loss of the headline's model, or its headline if it has no loss, at the first evaluation."""
        headline = headline_metric(event)
        if self._metric == AUTO and headline is not None:
            loss = f"{PERSONALIZED}loss" if shared_metric(headline) else "loss"
            self._metric = loss if loss in event else headline

    def _update(self, run: TrainingRun, event: Event) -> None:
        value, mode = event[self._metric], self.mode
        if mode == AUTO:
            info = result_info(self._metric, run.metrics)
            mode = "min" if self._metric == SELECTION_LOSS or info.higher_is_better is False else "max"
        improvement = self._best - value if mode == "min" else value - self._best
        if math.isnan(self._best) or improvement > self.min_delta:
            self._best, self._num_without = value, 0
        else:
            self._num_without += 1

    def _check(self, run: TrainingRun) -> None:
        if self._num_without >= self.patience:
            run.request_stop(f"{self._metric} has not improved on {self._best:.4g} in {self._num_without} evaluations")


class FinalReports(Callback):
    """Writes `per_class.csv`, `per_user.csv` and `example_images.json` at the end, and `privacy.json` of a private run.

    A private run writes no images. If it evaluates users whom it was trained on, it writes no scores either, unless
    `unprotected_statistics` is set: a class may be that of a single user.
    """

    def on_train_end(self, run: TrainingRun, result: Result) -> None:
        if run.folder is None:
            return
        folder, privacy, state = RunFolder(run.folder), run.algorithm.privacy, run.state
        if privacy is not None:
            epsilon = privacy.epsilon_spent(state.round, state.privacy_state)
            report = {"guarantee": privacy.describe(), "epsilon": epsilon, "rounds": state.round}
            folder.write_json(PRIVACY_FILE, report | {"mechanism": describe("privacy", privacy)})
        elif run.algorithm.personal_layers is not None or run.algorithm.personal_model is not None:
            users = run.population
            folder.write_json(CLIENTS_FILE, {users.user_name(u): int(k) for u, k in enumerate(users.user_ids)})
        if run.evaluator is not None and result.score is not None:
            population = run.evaluator.population
            withholds = run.config.withholds_statistics(run.algorithm)
            if not (withholds and are_training_users(population, run.population)):
                folder.write_text(PER_CLASS_FILE, per_class_table(result.score, population, result.personalized))
                folder.write_text(PER_USER_FILE, per_user_table(result.score, population, result.personalized))
            if privacy is None and result.personalized is None and run.config.example_images:
                _write_example_images(folder, run.evaluator, state.weights, run.config.seed)


def _write_example_images(folder: RunFolder, evaluator: Evaluator, weights: torch.Tensor, seed: int) -> None:
    examples = sampled_examples(evaluator.population, seed)
    outputs_NC = evaluator.outputs(weights, examples)
    if outputs_NC is not None:
        content = example_images(evaluator.population, examples, outputs_NC.cpu().numpy())
        folder.write_json(EXAMPLE_IMAGES_FILE, content)


class RejectionMessages(Callback):
    """Names the clients whose update was rejected, and why."""

    def on_round_end(self, run: TrainingRun, event: Event) -> None:
        reasons = event.get("rejection_reasons", {})
        for name in event.get("rejected_clients", ()):
            reason = reasons.get(name, f"the update of user {name} was not finite and is rejected")
            print(f"round {event['round']}: {reason}", file=sys.stderr)
