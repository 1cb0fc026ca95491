"""Scores of a run: of the shared model, and of models that clients keep or that are fine-tuned for the evaluation."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from manyeyes.core.plan import plan_round
from manyeyes.core.population import Ints, Population
from manyeyes.core.rng import derive_key
from manyeyes.core.state import PERSONAL_MODEL_PREFIX, PERSONAL_WEIGHTS, ClientStates, RoundContext, ServerState
from manyeyes.engines.evaluation import Evaluator, with_personal_weights
from manyeyes.metrics import PERSONALIZED, Accuracy, MetricSet, MultiLabelScores, Scores
from manyeyes.training.setup import TrainingSetup

MODELS_IN_MEMORY = 16  # whole models of clients, at the same time


@dataclass(frozen=True)
class FixedCohort:
    """Samples the same users in every round."""

    users: tuple[int, ...]

    def sample(self, population: Population, rng: np.random.Generator) -> Ints:
        return np.array(self.users)


@dataclass(frozen=True)
class PersonalModels(Mapping[int, dict[str, Tensor]]):
    """The clients' personal models as states with personal layers, read one at a time."""

    clients: ClientStates

    def __getitem__(self, client_id: int) -> dict[str, Tensor]:
        weights = self.clients[client_id].get(PERSONAL_MODEL_PREFIX + PERSONAL_WEIGHTS)
        return {} if weights is None else {PERSONAL_WEIGHTS: weights}  # none if its model was never finite

    def __iter__(self) -> Iterator[int]:
        return iter(self.clients)

    def __len__(self) -> int:
        return len(self.clients)

    def __contains__(self, client_id: object) -> bool:
        return client_id in self.clients


def score_models(setup: TrainingSetup, state: ServerState, clients: ClientStates) -> Scores:
    """Score the shared model with the clients' personal layers, and personalized models where the algorithm has them.

    If no evaluated user has a personal model, the models of some clients are scored on all examples.
    """
    algorithm, evaluator, engine = setup.algorithm, setup.evaluator, setup.engine
    if evaluator is None:
        return Scores()
    if algorithm.personal_layers is None or not clients:
        shared = evaluator.evaluate_global(state.weights)
    else:
        mask = engine.personal_mask(algorithm.personal_layers)
        shared = evaluator.evaluate_personal_layers(state.weights, mask, clients)
    if algorithm.adaptation is not None:
        return Scores(shared, evaluator.evaluate_personal_models(_fine_tuned_models(setup, evaluator, state, clients)))
    if algorithm.personal_model is None:
        return Scores(shared)
    if not clients:
        return Scores(shared, shared)
    mask = engine.personal_mask(algorithm.personal_model.personal_layers)
    return Scores(shared, evaluator.evaluate_personal_layers(state.weights, mask, PersonalModels(clients)))


def result_names(setup: TrainingSetup) -> list[str]:
    """Return the names of the results that an evaluation of the run may have."""
    evaluator, algorithm = setup.evaluator, setup.algorithm
    if evaluator is None:
        return []
    metrics, population = MetricSet(tuple(setup.metrics)), evaluator.population
    kind = MultiLabelScores if population.labels.multi else Accuracy
    computed = kind.empty(len(population.classes), metrics).compute()
    shared = list(dict.fromkeys([*kind.results, *computed, *metrics.results]))
    is_personalized = algorithm.adaptation is not None or algorithm.personal_model is not None
    return shared + ([PERSONALIZED + name for name in shared] if is_personalized else [])


def scored_models(setup: TrainingSetup) -> str:
    """Return what `score_models` scores, for a reader."""
    algorithm, population = setup.algorithm, (setup.evaluator or setup).population
    models = f"{len(population.user_ids):,} personal models"
    if algorithm.adaptation is not None:
        return f"{models}, each after fine-tuning, and those before"
    if algorithm.personal_model is not None:
        return f"{models} and the shared model"
    return models if algorithm.personal_layers is not None else f"on {len(population):,} images"


def _fine_tuned_models(
    setup: TrainingSetup, evaluator: Evaluator, state: ServerState, clients: ClientStates
) -> Iterator[tuple[int, Tensor]]:
    """Yield the model of each user, fine-tuned on its training examples; the shared model if it has none."""
    algorithm, population, engine = setup.algorithm, setup.population, setup.engine
    assert algorithm.adaptation is not None, "the algorithm has no adaptation"
    task = algorithm.adaptation.local_algorithm(algorithm)
    if task.personal_layers is None:
        problem = f"adaptation={type(algorithm.adaptation).__name__} returns an algorithm without personal layers"
        raise ValueError(f"{problem}: set its personal_layers to what the client fine-tunes.")
    lr, fine_tuned = task.client_optimizer.learning_rate(state.round), engine.personal_mask(task.personal_layers)
    context = RoundContext(task.client_optimizer, lr, None, None, fine_tuned, loss=task.loss)
    mask = None if algorithm.personal_layers is None else engine.personal_mask(algorithm.personal_layers)
    seed = derive_key(setup.config.seed, "adapt")
    user_of = {client_id: user for user, client_id in enumerate(population.user_ids.tolist())}
    client_ids = evaluator.population.user_ids
    for start in range(0, len(client_ids), MODELS_IN_MEMORY):
        batch = client_ids[start : start + MODELS_IN_MEMORY]
        models = dict.fromkeys(batch.tolist(), state.weights)
        if mask is not None:
            models = {k: with_personal_weights(state.weights, mask, clients.get(k)) for k in models}
        states = {k: {PERSONAL_WEIGHTS: model} for k, model in models.items()}
        if users := tuple(user_of[k] for k in states if k in user_of):
            fixed = replace(task, sampler=FixedCohort(users))
            plan = plan_round(fixed, population, seed, state.round, engine.num_augment_uniforms)
            states |= engine.train(state.weights, plan, context, states).client_states
        for client_id in evaluator.dist.shard(batch).tolist():
            yield client_id, states[client_id][PERSONAL_WEIGHTS]
