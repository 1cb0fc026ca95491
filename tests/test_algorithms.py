"""Every named algorithm against its paper's formulas, computed here in NumPy float64 on a linear softmax model.

Only the random draws (who takes part, which rows) are the package's; every gradient, step, weight and state is ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from manyeyes.algorithm import Algorithm, Client, Plan, Report
from manyeyes.algorithms import (
    centralised,
    ditto,
    fedadagrad,
    fedadam,
    fedavg,
    fedavgm,
    fedir,
    fednova,
    fedper,
    fedprox,
    fedrep,
    fedvc,
    fedyogi,
    local_only,
    mimelite,
    scaffold,
)
from manyeyes.data.augment import Augment
from manyeyes.engine.reference import Reference
from manyeyes.models.flat import FlatModel
from manyeyes.parts import SGD, Adam, Everyone, ImportanceRatio, Layers, Proximal, Schedule, ServerAdaptive, ServerSGD
from manyeyes.population import MultiLabels, Population, SingleLabels
from manyeyes.round import plan_round, play_round, start

Vector = NDArray[np.float64]

SEED = 3
LR = 0.1
CLASSES = ("cat", "dog", "owl")
LABELS_BY_USER = (
    [0, 1, 2, 0, 1, 2, 2],
    [0, 1, 0],
    [2, 1, 2, 0, 0],
    [1],
    [0, 2, 1, 1, 0, 2],
)  # 1 has no owl, 3 only dogs
LABELS = np.concatenate(LABELS_BY_USER)
SIZES = np.array([len(labels) for labels in LABELS_BY_USER])
OWNERS = np.repeat(np.arange(5), SIZES)
TAGS = ([0], [0, 2], [], [1, 2], [0, 1, 2], [1])  # repeated over the images: several labels each, or none
HOT = np.array([[c in TAGS[i % 6] for c in range(3)] for i in range(22)], float)
IMAGES = np.random.default_rng(1).integers(0, 256, (22, 2, 2, 3), dtype=np.uint8)
SEEN = ((IMAGES / 255 - 0.5) / 0.25).transpose(0, 3, 1, 2).reshape(22, 12)  # channels first, as a module flattens
THETA = np.random.default_rng(2).normal(0, 0.1, 39).astype(np.float32).astype(np.float64)
PEOPLE = Population.of(IMAGES, SingleLabels(LABELS, CLASSES), OWNERS)
TAGGED = Population.of(IMAGES, MultiLabels.of([TAGS[i % 6] for i in range(22)], CLASSES), OWNERS)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Game:
    """The package's run of an algorithm, one round at a time."""

    def __init__(self, algorithm: Algorithm, people: Population = PEOPLE) -> None:
        algorithm.check(people)
        module = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
        flat = FlatModel(module)
        flat.write(torch.tensor(THETA, dtype=torch.float32))
        self.algorithm, self.people = algorithm, people
        self.engine = Reference(flat, people, Augment(), torch.device("cpu"))
        self.state = start(algorithm, flat.read(), flat.trained)
        self.clients: dict[int, dict[str, torch.Tensor]] = {}

    def plan(self) -> Plan:
        """What the next round will do."""
        return plan_round(self.algorithm, self.people, SEED, self.state.round)

    def play(self) -> Report:
        self.state, report = play_round(self.algorithm, self.state, self.people, self.engine, self.clients, SEED)
        return report

    def assert_at(self, theta: Vector) -> None:
        np.testing.assert_allclose(self.state.weights.numpy(), theta, rtol=0, atol=1e-6)


Slope = Callable[[Vector, NDArray[np.int64], Any], Vector]


def softmax_slope(theta: Vector, rows: NDArray[np.int64], weights: Any = 1.0) -> Vector:
    """The gradient of sum(w l) / sum(w), l the cross-entropy; 0 where nothing weighs anything."""
    logits = SEEN[rows] @ theta[:36].reshape(3, 12).T + theta[36:]
    chance = np.exp(logits - logits.max(1, keepdims=True))
    chance /= chance.sum(1, keepdims=True)
    return _back(chance - np.eye(3)[LABELS[rows]], rows, weights)


def sigmoid_slope(theta: Vector, rows: NDArray[np.int64], weights: Any = 1.0) -> Vector:
    """The same for the binary cross-entropy, averaged over classes."""
    logits = SEEN[rows] @ theta[:36].reshape(3, 12).T + theta[36:]
    return _back((1 / (1 + np.exp(-logits)) - HOT[rows]) / 3, rows, weights)


def _back(errors: Vector, rows: NDArray[np.int64], weights: Any) -> Vector:
    weights = np.broadcast_to(weights, len(rows))
    if weights.sum() == 0:
        return np.zeros(39)
    errors = errors * (weights / weights.sum())[:, None]
    return np.concatenate([(errors.T @ SEEN[rows]).ravel(), errors.sum(0)])


def walk(
    theta: Vector,
    client: Client,
    lr: float = LR,
    *,
    slope: Slope = softmax_slope,
    example_weight: Callable[[NDArray[np.int64]], Any] = lambda rows: 1.0,
    momentum: float = 0.0,
    decay: float = 0.0,
    clip: float = np.inf,
    scale: float = 1.0,
    pull: float = 0.0,
    shift: Any = 0.0,
    velocity: Any = 0.0,
) -> tuple[Vector, Vector]:
    """A client's weights and velocity after local SGD over its planned rows."""
    begin = theta
    for row in client.rows_SB:
        batch = row[row >= 0]
        gradient = slope(theta, batch, example_weight(batch))
        gradient = gradient * min(1.0, clip / np.linalg.norm(gradient)) if gradient.any() else gradient
        gradient = scale * gradient + pull * (theta - begin) + shift + decay * theta
        velocity = momentum * velocity + gradient
        theta = theta - lr * velocity
    return theta, velocity


def pseudo_gradient(theta: Vector, plan: Plan, **how: Any) -> Vector:
    """sum_k n_k / n (theta_t - theta_k)."""
    sizes = np.array([SIZES[c.user] for c in plan.clients])
    updates = np.array([theta - walk(theta, c, **how)[0] for c in plan.clients])
    return sizes / sizes.sum() @ updates


def test_fedavg_averages_ragged_epochs_by_size() -> None:
    game = Game(fedavg(cohort=3, epochs=3, batch=2, lr=LR))
    theta = THETA
    for _ in range(2):
        theta = theta - pseudo_gradient(theta, game.plan())
        report = game.play()
        game.assert_at(theta)
    assert report.clients == 3


def test_fedavgm_is_a_heavy_ball_over_rounds() -> None:
    game = Game(fedavgm(momentum=0.8, cohort=3, epochs=2, batch=2, lr=LR))
    theta, velocity = THETA, np.zeros(39)
    for _ in range(4):
        velocity = 0.8 * velocity + pseudo_gradient(theta, game.plan())
        theta = theta - velocity
        game.play()
        game.assert_at(theta)


@pytest.mark.parametrize(("make", "beta1"), [(fedadam, 0.9), (fedyogi, 0.9), (fedadagrad, 0.0)])
def test_adaptive_servers_follow_algorithm_2_of_reddi_et_al(make: Callable[..., Algorithm], beta1: float) -> None:
    game = Game(make(server_lr=0.02, cohort=3, batch=3, lr=LR))
    beta2, tau = 0.99, 1e-3
    theta, mean, square = THETA, np.zeros(39), np.full(39, tau**2)
    for _ in range(4):
        g = pseudo_gradient(theta, game.plan())
        mean = beta1 * mean + (1 - beta1) * g
        if make is fedadam:
            square = beta2 * square + (1 - beta2) * g**2
        elif make is fedyogi:
            square = square - (1 - beta2) * g**2 * np.sign(square - g**2)
        else:
            square = square + g**2
        theta = theta - 0.02 * mean / (np.sqrt(square) + tau)
        game.play()
        game.assert_at(theta)


def test_bias_corrected_server_adam_is_torch_adam_on_the_pseudo_gradient() -> None:
    server = ServerAdaptive("adam", lr=0.02, beta1=0.8, beta2=0.95, tau=1e-3, bias_correction=True)
    game = Game(replace(fedavg(cohort=3, batch=3, lr=LR), server=server))
    theta = torch.tensor(THETA, requires_grad=True)
    adam = torch.optim.Adam([theta], lr=0.02, betas=(0.8, 0.95), eps=1e-3)
    for _ in range(4):
        theta.grad = torch.tensor(pseudo_gradient(theta.detach().numpy(), game.plan()))
        adam.step()
        game.play()
        game.assert_at(theta.detach().numpy())


TARGETS = [None, (0.5, 0.2, 0.3), (0.6, 0.0, 0.4)]


@pytest.mark.parametrize("target", TARGETS)
def test_fedir_weighs_examples_by_p_over_q_within_the_batch(target: tuple[float, ...] | None) -> None:
    """Eq. 3 and 4; user 1 has no owl, and user 3, who has only dogs, weighs nothing where p(dog) = 0."""
    game = Game(replace(fedir(target, epochs=2, batch=2, lr=LR), cohort=Everyone()))
    wanted = np.bincount(LABELS) / len(LABELS) if target is None else np.array(target)
    theta = THETA
    for _ in range(2):
        ends = []
        for client in game.plan().clients:
            share = np.bincount(LABELS_BY_USER[client.user], minlength=3) / SIZES[client.user]
            ends.append(
                walk(theta, client, example_weight=lambda rows, q=share: (wanted / np.where(q, q, 1))[LABELS[rows]])[0]
            )
        theta = SIZES / SIZES.sum() @ np.array(ends)
        game.play()
        game.assert_at(theta)


def test_fedvc_weighs_virtual_clients_of_fixed_size_alike() -> None:
    game = Game(fedvc(cohort=3, examples=4, batch=3, lr=LR))
    theta = THETA
    for _ in range(3):
        plan = game.plan()
        for client in plan.clients:
            assert (client.rows_SB >= 0).sum() == 4
            assert set(OWNERS[client.rows_SB[client.rows_SB >= 0]]) == {client.user}
        theta = np.mean([walk(theta, c)[0] for c in plan.clients], axis=0)
        game.play()
        game.assert_at(theta)


def test_fedvc_with_fedir_and_server_momentum_mixes_all_three() -> None:
    mixed = replace(fedvc(cohort=3, examples=4, batch=3, lr=LR), reweigh=ImportanceRatio(), server=fedavgm().server)
    game = Game(mixed)
    wanted = np.bincount(LABELS) / len(LABELS)
    theta, velocity = THETA, np.zeros(39)
    for _ in range(3):
        updates = []
        for client in game.plan().clients:
            share = np.bincount(LABELS_BY_USER[client.user], minlength=3) / SIZES[client.user]
            ends = walk(theta, client, example_weight=lambda rows, q=share: (wanted / np.where(q, q, 1))[LABELS[rows]])
            updates.append(theta - ends[0])
        velocity = 0.9 * velocity + np.mean(updates, axis=0)
        theta = theta - velocity
        game.play()
        game.assert_at(theta)


def test_fedprox_pulls_back_to_the_weights_of_the_server() -> None:
    game = Game(fedprox(mu=0.7, cohort=3, epochs=3, batch=2, lr=LR))
    theta = THETA
    for _ in range(2):
        theta = theta - pseudo_gradient(theta, game.plan(), pull=0.7)
        game.play()
        game.assert_at(theta)


def test_scaffold_keeps_control_variates_of_those_who_took_part() -> None:
    """Karimireddy et al. 2020, Algorithm 1, option II: 2 of 5 users a round."""
    game = Game(scaffold(cohort=2, epochs=2, batch=2, lr=LR))
    theta, c, own = THETA, np.zeros(39), np.zeros((5, 39))
    for _ in range(5):
        ends, changes = [], []
        for client in game.plan().clients:
            end, _ = walk(theta, client, shift=c - own[client.user])
            steps = 2 * -(-SIZES[client.user] // 2)
            new = own[client.user] - c + (theta - end) / (steps * LR)
            ends.append(end)
            changes.append(new - own[client.user])
            own[client.user] = new
        theta = np.mean(ends, axis=0)
        c = c + np.sum(changes, axis=0) / 5
        game.play()
        game.assert_at(theta)
        np.testing.assert_allclose(game.state.correction.numpy(), c, atol=1e-6)
    for user, kept in game.clients.items():
        np.testing.assert_allclose(kept["control"].numpy(), own[user], atol=2e-6)


def geometric(ratio: float, steps: int) -> float:
    return (1 - ratio**steps) / (1 - ratio)


NOVA = [  # momentum, mu, ||a||_1 of a walk of so many steps (Wang et al. 2020, section 4.1)
    (0.0, 0.0, lambda steps: steps),
    (0.6, 0.0, lambda steps: (steps - 0.6 * geometric(0.6, steps)) / (1 - 0.6)),
    (0.0, 0.7, lambda steps: geometric(1 - LR * 0.7, steps)),
]


@pytest.mark.parametrize(("momentum", "mu", "length"), NOVA)
def test_fednova_normalises_walks_of_different_length(
    momentum: float, mu: float, length: Callable[[int], float]
) -> None:
    algorithm = fednova(cohort=4, epochs=2, batch=2, lr=LR, momentum=momentum)
    game = Game(replace(algorithm, correct=Proximal(mu)) if mu else algorithm)
    theta = THETA
    for _ in range(2):
        plan = game.plan()
        sizes = np.array([SIZES[c.user] for c in plan.clients])
        lengths = np.array([length(2 * -(-n // 2)) for n in sizes])
        assert len(set(lengths)) > 1
        share = sizes / sizes.sum()
        updates = np.array([theta - walk(theta, c, momentum=momentum, pull=mu)[0] for c in plan.clients])
        theta = theta - (share @ lengths) * (share @ (updates / lengths[:, None]))
        game.play()
        game.assert_at(theta)


def test_mimelite_moves_clients_with_the_momentum_of_whole_gradients() -> None:
    game = Game(mimelite(beta=0.8, cohort=3, epochs=2, batch=2, lr=LR))
    theta, m = THETA, np.zeros(39)
    for _ in range(4):
        users = [c.user for c in game.plan().clients]
        ends = [walk(theta, c, scale=0.2, shift=0.8 * m)[0] for c in game.plan().clients]
        whole = [softmax_slope(theta, np.flatnonzero(user == OWNERS)) for user in users]
        theta, m = np.mean(ends, axis=0), 0.8 * m + 0.2 * np.mean(whole, axis=0)
        game.play()
        game.assert_at(theta)


def torch_epochs(game: Game, optimiser: Callable[[Any], torch.optim.Optimizer], rounds: int) -> Iterator[Vector]:
    """The weights after each round of plain PyTorch over the planned batches of the pooled examples."""
    module = nn.Linear(12, 3).double()
    with torch.no_grad():
        module.weight.copy_(torch.tensor(THETA[:36]).view(3, 12))
        module.bias.copy_(torch.tensor(THETA[36:]))
    steps = optimiser(module.parameters())
    for _ in range(rounds):
        (client,) = game.plan().clients
        for row in client.rows_SB:
            batch = row[row >= 0]
            steps.zero_grad()
            outputs = module(torch.tensor(SEEN[batch]))
            nn.functional.cross_entropy(outputs, torch.tensor(LABELS[batch])).backward()
            steps.step()
        yield np.concatenate([p.detach().numpy().ravel() for p in module.parameters()])


def test_centralised_is_torch_sgd_over_all_examples_with_its_momentum_kept() -> None:
    game = Game(centralised(batch=5, lr=0.02, momentum=0.9, weight_decay=0.01), PEOPLE.pooled())
    expected = torch_epochs(game, lambda p: torch.optim.SGD(p, 0.02, momentum=0.9, weight_decay=0.01), rounds=3)
    for theta in expected:
        report = game.play()
        game.assert_at(theta)
        assert report.images == 22


def test_centralised_adam_is_torch_adam() -> None:
    adam = Adam(0.01, betas=(0.8, 0.95), weight_decay=0.01, keep=True)
    game = Game(replace(centralised(batch=5), local=adam), PEOPLE.pooled())
    for theta in torch_epochs(game, lambda p: torch.optim.Adam(p, 0.01, (0.8, 0.95), weight_decay=0.01), rounds=3):
        game.play()
        game.assert_at(theta)


def test_local_only_users_train_alone_and_share_nothing() -> None:
    game = Game(local_only(epochs=2, batch=2, lr=LR))
    alone = np.tile(THETA, (5, 1))
    for _ in range(3):
        for client in game.plan().clients:
            alone[client.user] = walk(alone[client.user], client)[0]
        game.play()
        game.assert_at(THETA)
    for user in range(5):
        np.testing.assert_allclose(game.clients[user]["personal"].numpy(), alone[user], atol=1e-6)


BIAS = np.arange(39) >= 36  # what stays with the client in the tests below
HEAD = Layers(("1.bias",))


@pytest.mark.parametrize(
    "server", [ServerSGD(), ServerSGD(momentum=0.8), ServerAdaptive("adam", 0.02)], ids=["sgd", "momentum", "adam"]
)
def test_fedper_keeps_the_head_with_the_client_and_out_of_the_server(server: Any) -> None:
    """Arivazhagan et al. 2019, Algorithms 1 and 2: 3 of 5 users a round; who is new starts from the first head."""
    game = Game(replace(fedper(cohort=3, epochs=2, batch=2, lr=LR, momentum=0.5), personal=HEAD, server=server))
    theta, heads = THETA, np.tile(THETA[BIAS], (5, 1))
    velocity, mean, square = np.zeros(39), np.zeros(39), np.full(39, 1e-6)
    for _ in range(4):
        plan, update = game.plan(), np.zeros(39)
        n = sum(SIZES[c.user] for c in plan.clients)
        for client in plan.clients:
            begin = np.where(BIAS, np.concatenate([np.zeros(36), heads[client.user]]), theta)
            end, _ = walk(begin, client, momentum=0.5)
            heads[client.user] = end[BIAS]
            update += SIZES[client.user] / n * np.where(BIAS, 0, begin - end)
        if isinstance(server, ServerAdaptive):
            mean, square = 0.9 * mean + 0.1 * update, 0.99 * square + 0.01 * update**2
            theta = theta - 0.02 * mean / (np.sqrt(square) + 1e-3)
        else:
            velocity = server.momentum * velocity + update
            theta = theta - velocity
        game.play()
        game.assert_at(theta)
        assert np.array_equal(game.state.weights.numpy()[BIAS], THETA[BIAS].astype(np.float32))
        for name in ("velocity", "mean"):
            if name in game.state.server:
                assert not game.state.server[name][36:].any()
    for user, kept in game.clients.items():
        np.testing.assert_allclose(kept["personal"].numpy(), heads[user], atol=1e-6)


@pytest.mark.parametrize(
    "how", [{}, {"momentum": 0.7}, {"weight_decay": 0.3}, {"momentum": 0.5, "weight_decay": 0.1, "clip": 1.0}]
)
def test_fedrep_moves_the_head_first_and_then_the_body(how: dict[str, float]) -> None:
    """Collins et al. 2021, Algorithm 1: the part that rests neither decays nor glides, nor does its slope clip."""
    game = Game(replace(fedrep(head_epochs=2, cohort=3, epochs=1, batch=2, lr=LR, **how), personal=HEAD))
    momentum, decay, clip = how.get("momentum", 0.0), how.get("weight_decay", 0.0), how.get("clip", np.inf)
    theta, heads = THETA, np.tile(THETA[BIAS], (5, 1))
    for _ in range(3):
        plan, update = game.plan(), np.zeros(39)
        n = sum(SIZES[c.user] for c in plan.clients)
        for client in plan.clients:
            now = np.where(BIAS, np.concatenate([np.zeros(36), heads[client.user]]), theta)
            begin, velocity = now, np.zeros(39)
            epoch = -(-SIZES[client.user] // 2)
            assert len(client.rows_SB) == 3 * epoch
            for step, row in enumerate(client.rows_SB):
                moves = BIAS if step < 2 * epoch else ~BIAS
                gradient = softmax_slope(now, row[row >= 0])[moves]
                gradient = gradient * min(1.0, clip / np.linalg.norm(gradient)) + decay * now[moves]
                velocity[moves] = momentum * velocity[moves] + gradient
                now = now.copy()
                now[moves] -= LR * velocity[moves]
            heads[client.user] = now[BIAS]
            update += SIZES[client.user] / n * np.where(BIAS, 0, begin - now)
        theta = theta - update
        game.play()
        game.assert_at(theta)
    for user, kept in game.clients.items():
        np.testing.assert_allclose(kept["personal"].numpy(), heads[user], atol=1e-6)


def test_ditto_trains_a_model_of_each_clients_own_tied_to_the_servers() -> None:
    """Li et al. 2021, Algorithm 1: both models see the weights that the server sent."""
    game = Game(ditto(pull=0.7, cohort=3, epochs=2, batch=2, lr=LR, momentum=0.5))
    theta, own = THETA, np.tile(THETA, (5, 1))
    own_seen = set()
    for _ in range(4):
        for client in game.plan().clients:
            now, velocity = own[client.user] if client.user in own_seen else theta, np.zeros(39)
            for row in client.rows_SB:
                gradient = softmax_slope(now, row[row >= 0]) + 0.7 * (now - theta)
                velocity = 0.5 * velocity + gradient
                now = now - LR * velocity
            own[client.user] = now
            own_seen.add(client.user)
        theta = theta - pseudo_gradient(theta, game.plan(), momentum=0.5)
        game.play()
        game.assert_at(theta)
    assert set(game.clients) == own_seen
    for user in own_seen:
        np.testing.assert_allclose(game.clients[user]["beside/personal"].numpy(), own[user], atol=2e-6)


def test_ditto_beside_scaffold_keeps_both() -> None:
    game = Game(replace(ditto(pull=0.7, cohort=3, batch=2, lr=LR), correct=scaffold().correct))
    alone = Game(replace(scaffold(cohort=3, batch=2, lr=LR), weigh=fedavg().weigh))
    for _ in range(3):
        game.play()
        alone.play()
    assert torch.equal(game.state.weights, alone.state.weights)
    assert all(kept.keys() == {"control", "beside/personal"} for kept in game.clients.values())


@pytest.mark.parametrize(
    "how",
    [{"momentum": 0.7}, {"weight_decay": 0.3}, {"clip": 1.0}, {"momentum": 0.5, "weight_decay": 0.1, "clip": 1.5}],
)
def test_local_sgd_options(how: dict[str, float]) -> None:
    game = Game(fedavg(cohort=3, epochs=2, batch=2, lr=LR, **how))
    ours = {"decay" if name == "weight_decay" else name: value for name, value in how.items()}
    theta = THETA
    for _ in range(2):
        theta = theta - pseudo_gradient(theta, game.plan(), **ours)
        game.play()
        game.assert_at(theta)


def test_kept_local_momentum_waits_for_its_user() -> None:
    game = Game(fedavg(cohort=2, batch=2, lr=LR, momentum=0.7, keep=True))
    theta, velocity = THETA, np.zeros((5, 39))
    for _ in range(4):
        ends, sizes = [], []
        for client in game.plan().clients:
            end, velocity[client.user] = walk(theta, client, momentum=0.7, velocity=velocity[client.user])
            ends.append(end)
            sizes.append(SIZES[client.user])
        theta = np.array(sizes) / sum(sizes) @ np.array(ends)
        game.play()
        game.assert_at(theta)


def test_local_and_server_rates_follow_their_schedules() -> None:
    local = SGD(LR, schedule=Schedule(warmup=2))  # 1/2, 1, 1
    server = replace(fedavg().server, lr=0.8, schedule=Schedule("polynomial", rounds=4))  # 1, 3/4, 1/2
    game = Game(replace(fedavg(cohort=3, batch=2), local=local, server=server))
    theta = THETA
    for lr, server_lr in [(LR / 2, 0.8), (LR, 0.6), (LR, 0.4)]:
        theta = theta - server_lr * pseudo_gradient(theta, game.plan(), lr=lr)
        game.play()
        game.assert_at(theta)


def test_several_labels_train_by_binary_cross_entropy() -> None:
    game = Game(fedavg(cohort=3, epochs=2, batch=4, lr=LR), TAGGED)
    theta = THETA
    for _ in range(2):
        theta = theta - pseudo_gradient(theta, game.plan(), slope=sigmoid_slope)
        game.play()
        game.assert_at(theta)


def test_first_loss_is_the_cross_entropy_of_the_drawn_examples() -> None:
    game = Game(fedavg(cohort=3, batch=22, lr=LR))
    rows = np.concatenate([c.rows_SB[c.rows_SB >= 0] for c in game.plan().clients])
    logits = SEEN[rows] @ THETA[:36].reshape(3, 12).T + THETA[36:]
    losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(rows)), LABELS[rows]]
    report = game.play()
    assert report.loss == pytest.approx(losses.mean(), abs=1e-6)
    assert (report.images, report.batches) == (len(rows), 1)
