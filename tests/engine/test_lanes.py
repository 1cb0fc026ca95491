"""The fast engines compute what the reference computes; here on a CPU, where they run without streams and graphs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithm import Algorithm, ClientStore, Report, Work
from manyeyes.algorithms import NAMED, fedavg
from manyeyes.data.augment import Augment
from manyeyes.engine import stepping, table
from manyeyes.engine.choice import Means, choose_engine, lanes_for
from manyeyes.engine.compiling import wrong_parameter
from manyeyes.engine.lanes import Lanes
from manyeyes.engine.ranks import Ranks
from manyeyes.engine.reference import Reference
from manyeyes.models import build
from manyeyes.models.dropout import with_seeded_dropout
from manyeyes.models.flat import FlatModel
from manyeyes.parts import SGD, Adam, Ditto, Everyone, Layers, Norms, Pooled
from manyeyes.population import MultiLabels, Population, SingleLabels
from manyeyes.round import plan_round, play_round, start
from manyeyes.run.training import train

CPU = torch.device("cpu")
AUGMENT = Augment(crop=12, pad=1, flip_horizontal=True)
ENGINES = {"lanes": (3, 1), "vector": (1, 64), "both": (2, 4)}  # lanes, and clients side by side


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def crowd(multi: bool = False) -> Population:
    """Nine people of one to thirty photos."""
    rng = np.random.default_rng(0)
    users = np.repeat(np.arange(9), [30, 17, 16, 9, 8, 5, 2, 1, 1])
    images = rng.integers(0, 256, (len(users), 14, 14, 3), np.uint8)
    if multi:
        tags = [np.flatnonzero(rng.random(5) < 0.3).tolist() for _ in users]
        return Population.of(images, MultiLabels.of(tags, tuple("abcde")), users)
    return Population.of(images, SingleLabels(rng.integers(0, 5, len(users)), tuple("abcde")), users)


PEOPLE = crowd()


def fast(flat: FlatModel, people: Population, name: str, **options: Any) -> Lanes:
    count, width = ENGINES[name]
    return Lanes(
        flat, people, AUGMENT, CPU, lanes=count, width=width, **{"precision": "float32", "compile": False} | options
    )


def game(
    engine: str | None,
    algorithm: Algorithm,
    module: nn.Module | None = None,
    people: Population = PEOPLE,
    **options: Any,
) -> tuple[Tensor, Report, ClientStore]:
    """Three rounds on an engine, or on the reference: how the weights moved, the last report, what clients keep."""
    if not isinstance(algorithm.cohort, Pooled):
        algorithm = replace(algorithm, cohort=Everyone())
    else:
        people = people.pooled()
    flat = FlatModel(with_seeded_dropout(module or build("lenet", 5, size=12, width=4)))
    made = fast(flat, people, engine, **options) if engine else Reference(flat, people, AUGMENT, CPU, **options)
    begin = flat.read()
    state, clients = start(algorithm, begin, flat.trained), dict[int, Any]()
    for _ in range(3):
        state, report = play_round(algorithm, state, people, made, clients, seed=3)
    assert torch.equal(flat.read(), begin)
    return begin - state.weights, report, clients


def far(found: Tensor, wanted: Tensor) -> float:
    return float(torch.linalg.vector_norm(found - wanted) / torch.linalg.vector_norm(wanted).clamp_min(1e-12))


def assert_same(
    engine: str, algorithm: Algorithm, module: nn.Module | None = None, people: Population = PEOPLE
) -> None:
    wanted, report, kept = game(None, algorithm, module, people)
    found, other, keeps = game(engine, algorithm, module, people)
    assert far(found, wanted) < 1e-5
    assert (other.loss, other.norm) == pytest.approx((report.loss, report.norm), rel=1e-5)
    assert keeps.keys() == kept.keys()
    for user, things in kept.items():
        assert keeps[user].keys() == things.keys()
        for name, tensor in things.items():
            torch.testing.assert_close(keeps[user][name], tensor, rtol=1e-4, atol=1e-6)


VARIANTS: dict[str, Algorithm] = {
    **{
        name: make(batch=8, lr=0.05, **({"examples": 12} if name == "fedvc" else {}))
        for name, make in NAMED.items()
        if name != "fedbn"
    },
    "fedrep, momentum, decay and clipping": replace(
        NAMED["fedrep"](batch=8, head_epochs=2), local=SGD(0.02, 0.9, 1e-3, clip=0.5)
    ),
    "ditto, momentum that is kept": replace(NAMED["ditto"](batch=8), local=SGD(0.02, 0.9, keep=True)),
    "ditto, scaffold": replace(NAMED["scaffold"](batch=8, lr=0.05), beside=Ditto(0.5)),
    "momentum, decay and clipping": replace(fedavg(batch=8, epochs=2), local=SGD(0.02, 0.9, 1e-3, clip=0.5)),
    "momentum that is kept": replace(fedavg(batch=8), local=SGD(0.02, 0.9, keep=True)),
    "adam that is kept": replace(fedavg(batch=8), local=Adam(1e-3, keep=True)),
    "personal head": replace(fedavg(batch=8, lr=0.05), personal=Layers(("fc3.*",))),
    "personal head, fedprox": replace(NAMED["fedprox"](batch=8, lr=0.05), personal=Layers(("fc3.*",))),
    "personal head, scaffold": replace(NAMED["scaffold"](batch=8, lr=0.05), personal=Layers(("fc3.*",))),
    "full batches": fedavg(batch=64, lr=0.05),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", VARIANTS)
def test_three_rounds_equal_the_references(engine: str, name: str) -> None:
    assert_same(engine, VARIANTS[name])


@pytest.mark.parametrize("engine", ENGINES)
def test_several_labels_and_dropout(engine: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(400, 5)
    )
    assert_same(engine, fedavg(batch=8, lr=0.1), module, crowd(multi=True))


def test_live_batch_norm_gets_exact_batches_and_its_statistics_are_averaged() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(400, 5))
    assert_same("lanes", fedavg(batch=8, lr=0.05), module)


@pytest.mark.parametrize("name", ["fedbn", "fedrep"])
@pytest.mark.parametrize("norm", [nn.BatchNorm2d(4), nn.GroupNorm(2, 4)], ids=["batch", "group"])
def test_norms_and_their_statistics_follow_the_part_they_belong_to(norm: nn.Module, name: str) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(400, 5))
    algorithm = NAMED[name](batch=8, lr=0.05, **({"head_epochs": 1} if name == "fedrep" else {}))
    algorithm = replace(algorithm, personal=Layers(("4.*",))) if name == "fedrep" else algorithm
    assert_same("lanes", algorithm, module)
    moved, _, kept = game("lanes", algorithm, module)
    flat = FlatModel(module)
    theirs = flat.mask((Norms() if name == "fedbn" else Layers(("4.*",))).names(module).__contains__)
    assert not moved[theirs].any()
    assert all(len(things["personal"]) == int(theirs.sum()) for things in kept.values())


def test_work_of_several_kinds_in_turn_is_done_as_if_each_were_alone() -> None:
    """As an evaluation with fine-tuning between two rounds."""
    algorithm, flat = (
        replace(VARIANTS["personal head"], cohort=Everyone()),
        FlatModel(build("lenet", 5, size=12, width=4)),
    )
    made = [Reference(flat, PEOPLE, AUGMENT, CPU), fast(flat, PEOPLE, "both")]
    plans = [plan_round(algorithm, PEOPLE, seed, 0, AUGMENT.dice) for seed in (3, 4)]
    for patterns in (("fc3.*",), ("*",), ("fc3.*",)):
        for plan in plans:
            found = []
            for one in made:
                work = Work(algorithm.local, 0.05, None, None, one.personal(Layers(patterns)))
                found.append(one.train(flat.read(), plan, work, {}))
            torch.testing.assert_close(found[1].update_W, found[0].update_W, rtol=1e-4, atol=1e-5)
            for key, kept in found[0].keeps.items():
                torch.testing.assert_close(found[1].keeps[key]["personal"], kept["personal"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("norm", ["group", "frozen_batch"])
def test_deep_models_with_every_norm(norm: str) -> None:
    people = PEOPLE.where(PEOPLE.owners(np.arange(len(PEOPLE))) < 6)  # batches of one have no variance
    module = build("mobilenet_v1", 5, norm=norm)
    algorithm = fedavg(batch=64, lr=0.01)
    wanted, _, _ = game(None, algorithm, module, people)
    found, _, _ = game("lanes", algorithm, module, people)
    assert far(found, wanted) < 1e-3  # units near 0 fall to either side of a ReLU


@pytest.mark.parametrize("engine", ["reference", "ranks", "vector", "lanes"])
def test_a_model_may_take_its_images_to_lie_in_plain_order(engine: str) -> None:
    class Viewing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(576, 5)

        def forward(self, images: Tensor) -> Tensor:
            return self.fc(self.conv(images).view(len(images), -1))

    train(PEOPLE, Viewing(), fedavg(cohort=2, batch=8), rounds=1, test=PEOPLE, engine=engine)


class Centred(nn.Module):
    """Takes the mean image of the batch away: what padding would change, without a norm of any name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 4, 3), nn.Linear(400, 5)

    def forward(self, images: Tensor) -> Tensor:
        found = torch.relu(self.conv(images))
        return self.fc((found - found.mean(0)).flatten(1))


def test_a_model_that_mixes_the_examples_of_a_batch_gets_exact_ones() -> None:
    assert_same("lanes", fedavg(batch=8, lr=0.05), Centred())
    with pytest.raises(ValueError, match="would count the padding"):
        choose("vector", Centred(), augment=AUGMENT)


def test_images_that_are_not_square() -> None:
    rng = np.random.default_rng(0)
    wide = rng.integers(0, 256, (30, 6, 10, 3), np.uint8)
    people = Population.of(wide, SingleLabels(rng.integers(0, 5, 30), tuple("abcde")), np.arange(30) % 4)
    module = nn.Sequential(nn.Flatten(), nn.Linear(180, 5))
    for engine in ("vector", "lanes"):
        train(people, module, fedavg(cohort=2, batch=4), rounds=1, engine=engine)


def test_a_model_that_trains_in_part() -> None:
    module = build("lenet", 5, size=12, width=4)
    module.conv1.requires_grad_(False)
    assert_same("both", fedavg(batch=8, lr=0.05), module)


@pytest.mark.parametrize("engine", [None, *ENGINES])
def test_bf16_is_near(engine: str | None) -> None:
    wanted, _, _ = game(None, fedavg(batch=8, lr=0.05))
    found, _, _ = game(engine, fedavg(batch=8, lr=0.05), precision="bf16")
    assert 1e-5 < far(found, wanted) < 0.1


@pytest.mark.parametrize("engine", ENGINES)
def test_no_client_sends_more_than_the_bound(engine: str) -> None:
    algorithm, flat = fedavg(batch=8, lr=0.05), FlatModel(build("lenet", 5, size=12, width=4))
    algorithm = replace(algorithm, cohort=Everyone())
    plan = plan_round(algorithm, PEOPLE, 3, 0, AUGMENT.dice)
    made = [Reference(flat, PEOPLE, AUGMENT, CPU), fast(flat, PEOPLE, engine)]
    free = made[0].train(flat.read(), plan, Work(algorithm.local, 0.05, None, None, None), {})
    bound = float(np.median(free.norm_K))
    work = Work(algorithm.local, 0.05, None, None, None, bound)
    wanted, found = (one.train(flat.read(), plan, work, {}) for one in made)
    torch.testing.assert_close(found.update_W, wanted.update_W, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.norm_K, free.norm_K, rtol=1e-5)  # as they were before
    alone = [replace(plan, clients=(client,)) for client in plan.clients]
    for one, free_norm in zip(alone, free.norm_K, strict=True):
        sent = made[1].train(flat.read(), one, work, {}).update_W / one.clients[0].weight
        assert float(sent.norm()) == pytest.approx(min(bound, free_norm), rel=1e-5)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_client_whose_update_is_not_finite_is_left_out(engine: str) -> None:
    """User 0 alone photographs what the model cannot bear."""

    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(432, 5)

        def forward(self, images: Tensor) -> Tensor:
            white = images.amax((1, 2, 3), keepdim=True) > 1.99
            return self.fc(torch.where(white, images * torch.inf, images).flatten(1))

    torch.manual_seed(0)
    pixels = np.random.default_rng(1).integers(0, 200, PEOPLE.images.shape, np.uint8)
    pixels[PEOPLE.rows[PEOPLE.examples(3)]] = 255
    people, algorithm = replace(PEOPLE, images=pixels), fedavg(batch=8, lr=0.05)
    module = Fragile()
    wanted, report, _ = game(None, algorithm, module, people)
    found, other, _ = game(engine, algorithm, module, people)
    assert other.left_out == report.left_out == ("3",)
    assert far(found, wanted) < 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_in_many_pieces_is_the_same(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, _, _ = game(engine, VARIANTS["momentum, decay and clipping"])
    monkeypatch.setattr(table, "IMAGE_BYTES", 1)  # one step a piece
    found, _, _ = game(engine, VARIANTS["momentum, decay and clipping"])
    assert torch.equal(found, wanted)


def test_a_run_in_many_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def play() -> Tensor:
        model = build("linear", 5, size=14, seed=0)
        run = train(PEOPLE, model, fedavg(cohort=4, batch=8, epochs=2), rounds=4, engine="lanes", lanes=2)
        return FlatModel(run.model).read()

    wanted = play()
    monkeypatch.setattr(table, "IMAGE_BYTES", 1)
    assert torch.equal(play(), wanted)


def test_the_next_round_is_sent_while_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    upload, gather = table.Table.upload, Lanes._gather
    monkeypatch.setattr(table.Table, "upload", lambda *a: (seen.append(a[2]), upload(*a)))
    monkeypatch.setattr(Lanes, "_gather", lambda *a: (seen.append("gathered"), gather(*a))[1])
    people = replace(PEOPLE, offsets=np.array([0, 32, 64]), users=np.arange(2), names=None)
    train(people, build("linear", 5, size=14), fedavg(cohort=2, batch=8), rounds=3, engine="lanes")
    assert seen == [0, 0, 1, "gathered", 0, "gathered", "gathered"]  # first of all, to make the steps ready


def test_a_run_is_the_same_however_it_is_planned_and_repeats() -> None:
    runs = [
        train(PEOPLE, build("lenet", 5, size=14, width=4), fedavg(cohort=4, batch=8), rounds=4, engine="lanes", lanes=n)
        for n in (2, 2, 3)
    ]
    first, again, other = (FlatModel(run.model).read() for run in runs)
    assert torch.equal(first, again)
    assert far(other, first) < 1e-6


def test_a_compiled_step_equals_a_plain_one() -> None:
    people = replace(PEOPLE, offsets=np.array([0, 32, 64]), users=np.arange(2), names=None)
    module = nn.Sequential(nn.Flatten(), nn.Linear(432, 8), nn.ReLU(), nn.Linear(8, 5))
    wanted, _, _ = game("vector", fedavg(batch=16, lr=0.05), module, people)
    found, _, _ = game("vector", fedavg(batch=16, lr=0.05), module, people, compile=True)
    assert 0 < far(found, wanted) < 1e-5


def test_of_exact_batches_only_full_ones_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = set()

    def watched(function: Any) -> Any:
        def called(*arguments: Any) -> Any:
            sizes.add(arguments[2].shape[1] if function.__name__ == "loss" else 16)
            return function(*arguments)

        return called

    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(400, 5))
    wanted, _, _ = game("lanes", fedavg(batch=16, lr=0.05), module)
    monkeypatch.setattr(stepping, "compiled", watched)
    found, _, _ = game("lanes", fedavg(batch=16, lr=0.05), module, compile=True)
    assert torch.equal(found, wanted)
    assert sizes == {16}


def test_a_compiler_that_loses_a_gradient_is_not_trusted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lossy(function: Any) -> Any:
        """As Inductor once did: right values, and no gradient of one layer."""

        def loss(theta: Tensor, *rest: Any) -> Tensor:
            return function(torch.cat([theta[:, :300].detach(), theta[:, 300:]], 1), *rest)

        return loss if function.__name__ == "loss" else function

    wanted, _, _ = game("lanes", fedavg(batch=16, lr=0.05))
    monkeypatch.setattr(stepping, "compiled", lossy)
    found, _, _ = game("lanes", fedavg(batch=16, lr=0.05), compile=True)
    assert torch.equal(found, wanted)
    assert "the compiled gradient of conv1.weight is" in capsys.readouterr().err


def test_a_compiler_that_fails_is_done_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(function: Any) -> Any:
        def fail(*arguments: Any) -> Any:
            raise RuntimeError("no compiler here\nand more")

        return fail if function.__name__ in ("loss", "look") else function

    monkeypatch.setattr(stepping, "compiled", broken)
    game("lanes", fedavg(batch=16, lr=0.05), compile=True)
    assert "cannot be compiled and runs uncompiled: no compiler here\n" in capsys.readouterr().err


def test_a_gradient_that_is_wrong_in_one_parameter_is_found() -> None:
    exact = torch.randn(1, 100)
    plain = exact + 1e-3 * torch.randn(1, 100)
    names = {"a": 90, "b": 10}
    assert wrong_parameter(names, plain, plain, exact) is None
    lost = plain.clone()
    lost[:, 90:] = 0
    wrong = wrong_parameter(names, lost, plain, exact)
    assert wrong is not None
    assert wrong[0] == "b"
    lost[:, 0] = torch.nan
    assert wrong_parameter(names, lost, plain, exact) is not None


@pytest.mark.parametrize(("clients", "count"), [(1, 1), (10, 10), (16, 16), (50, 10), (200, 8), (17, 9)])
def test_lanes_are_chosen_so_that_none_is_idle_for_long(clients: int, count: int) -> None:
    assert lanes_for(clients) == count


class Drawing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(588, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(nn.functional.dropout(images, training=self.training).flatten(1))


def choose(name: str, module: nn.Module, augment: Augment = Augment(), **means: Any) -> Any:  # noqa: B008
    return choose_engine(name, FlatModel(module), PEOPLE, augment, CPU, Means(**means))


@pytest.mark.parametrize(
    ("name", "module", "means", "reason"),
    [
        ("vector", build("resnet18", 5, norm="batch"), {}, "would count the padding"),
        ("lanes", Drawing(), {}, "draws random numbers of its own"),
        ("quantum", build("linear", 5, size=14), {}, "engine 'quantum' is unknown: choose auto or reference, ranks"),
        ("lanes", build("linear", 5, size=14), {"precision": "tf32"}, "is one of GPUs"),
        ("lanes", build("linear", 5, size=14), {"precision": "float16"}, "choose auto, float32, tf32, bf16"),
    ],
)
def test_what_an_engine_cannot_do_it_says(name: str, module: nn.Module, means: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        choose(name, module, **means)


def test_auto_takes_the_next_best() -> None:
    linear = build("linear", 5, size=14)
    assert isinstance(choose("auto", linear), Ranks)
    assert isinstance(choose("auto", linear, precision="bf16"), Ranks)
    assert isinstance(choose("auto", Drawing()), Ranks)
