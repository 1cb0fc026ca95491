"""The fast engines compute what the reference computes; here on a CPU, where they run without streams and graphs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from manyeyes.algorithms import NAMED_ALGORITHMS, fedavg
from manyeyes.components import SGD, Adam, AllClients, Ditto, MatchingLayers
from manyeyes.core.algorithm import Algorithm, Engine
from manyeyes.core.plan import plan_round
from manyeyes.core.state import RoundContext
from manyeyes.engines.gpu import buffers as table
from manyeyes.engines.gpu.engine import GpuEngine
from manyeyes.engines.reference import ReferenceEngine
from manyeyes.models import build_model
from manyeyes.models.flat import FlatModel
from manyeyes.training.train import train
from tests.engines.gpu_runs import AUGMENT, CPU, ENGINES, PEOPLE, assert_same, crowd, far, fast, game

VARIANTS: dict[str, Algorithm] = {
    **{
        name: make(batch=8, lr=0.05, **({"examples": 12} if name == "fedvc" else {}))
        for name, make in NAMED_ALGORITHMS.items()
        if name != "fedbn"
    },
    "fedrep, momentum, decay and clipping": replace(
        NAMED_ALGORITHMS["fedrep"](batch=8, head_epochs=2), client_optimizer=SGD(0.02, 0.9, 1e-3, max_grad_norm=0.5)
    ),
    "ditto, momentum that is kept": replace(
        NAMED_ALGORITHMS["ditto"](batch=8), client_optimizer=SGD(0.02, 0.9, persist_state=True)
    ),
    "ditto, scaffold": replace(NAMED_ALGORITHMS["scaffold"](batch=8, lr=0.05), personal_model=Ditto(0.5)),
    "momentum, decay and clipping": replace(
        fedavg(batch_size=8, epochs=2), client_optimizer=SGD(0.02, 0.9, 1e-3, max_grad_norm=0.5)
    ),
    "momentum that is kept": replace(fedavg(batch_size=8), client_optimizer=SGD(0.02, 0.9, persist_state=True)),
    "adam that is kept": replace(fedavg(batch_size=8), client_optimizer=Adam(1e-3, persist_state=True)),
    "personal head": replace(fedavg(batch_size=8, lr=0.05), personal_layers=MatchingLayers(("fc3.*",))),
    "personal head, fedprox": replace(
        NAMED_ALGORITHMS["fedprox"](batch=8, lr=0.05), personal_layers=MatchingLayers(("fc3.*",))
    ),
    "personal head, scaffold": replace(
        NAMED_ALGORITHMS["scaffold"](batch=8, lr=0.05), personal_layers=MatchingLayers(("fc3.*",))
    ),
    "full batches": fedavg(batch_size=64, lr=0.05),
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
    assert_same(engine, fedavg(batch_size=8, lr=0.1), module, crowd(multi=True))


def test_work_of_several_kinds_in_turn_is_done_as_if_each_were_alone() -> None:
    """As an evaluation with fine-tuning between two rounds."""
    algorithm, flat = (
        replace(VARIANTS["personal head"], sampler=AllClients()),
        FlatModel(build_model("lenet", 5, size=12, width=4)),
    )
    made: list[Engine] = [ReferenceEngine(flat, PEOPLE, AUGMENT, CPU), fast(flat, PEOPLE, "both")]
    plans = [plan_round(algorithm, PEOPLE, seed, 0, AUGMENT.num_uniforms) for seed in (3, 4)]
    for patterns in (("fc3.*",), ("*",), ("fc3.*",)):
        for plan in plans:
            found = []
            for one in made:
                work = RoundContext(
                    algorithm.client_optimizer, 0.05, None, None, one.personal_mask(MatchingLayers(patterns))
                )
                found.append(one.train(flat.read(), plan, work, {}))
            torch.testing.assert_close(found[1].update_W, found[0].update_W, rtol=1e-4, atol=1e-5)
            for key, kept in found[0].keeps.items():
                torch.testing.assert_close(found[1].keeps[key]["personal"], kept["personal"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("engine", [None, *ENGINES])
def test_bf16_is_near(engine: str | None) -> None:
    wanted, _, _ = game(None, fedavg(batch_size=8, lr=0.05))
    found, _, _ = game(engine, fedavg(batch_size=8, lr=0.05), precision="bf16")
    assert 1e-5 < far(found, wanted) < 0.1


@pytest.mark.parametrize("engine", ENGINES)
def test_no_client_sends_more_than_the_bound(engine: str) -> None:
    algorithm, flat = fedavg(batch_size=8, lr=0.05), FlatModel(build_model("lenet", 5, size=12, width=4))
    algorithm = replace(algorithm, sampler=AllClients())
    plan = plan_round(algorithm, PEOPLE, 3, 0, AUGMENT.num_uniforms)
    made: list[Engine] = [ReferenceEngine(flat, PEOPLE, AUGMENT, CPU), fast(flat, PEOPLE, engine)]
    free = made[0].train(flat.read(), plan, RoundContext(algorithm.client_optimizer, 0.05, None, None, None), {})
    bound = float(np.median(free.norm_K))
    work = RoundContext(algorithm.client_optimizer, 0.05, None, None, None, bound)
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
    pixels[PEOPLE.image_indices[PEOPLE.examples(3)]] = 255
    people, algorithm = replace(PEOPLE, images=pixels), fedavg(batch_size=8, lr=0.05)
    module = Fragile()
    wanted, report, _ = game(None, algorithm, module, people)
    found, other, _ = game(engine, algorithm, module, people)
    assert other.rejected_clients == report.rejected_clients == ("3",)
    assert far(found, wanted) < 1e-5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_round_in_many_pieces_is_the_same(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted, _, _ = game(engine, VARIANTS["momentum, decay and clipping"])
    monkeypatch.setattr(table, "IMAGE_BYTES", 1)  # one step a piece
    found, _, _ = game(engine, VARIANTS["momentum, decay and clipping"])
    assert torch.equal(found, wanted)


def test_a_run_in_many_pieces_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def play() -> Tensor:
        model = build_model("linear", 5, size=14, seed=0)
        run = train(
            PEOPLE, model, fedavg(cohort_size=4, batch_size=8, epochs=2), rounds=4, engine="cuda_graphs", num_streams=2
        )
        return FlatModel(run.model).read()

    wanted = play()
    monkeypatch.setattr(table, "IMAGE_BYTES", 1)
    assert torch.equal(play(), wanted)


def test_the_next_round_is_sent_while_one_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    upload, gather = table.PlanBuffers.upload, GpuEngine._gather

    def uploading(*arguments: Any) -> None:
        seen.append(arguments[2])
        upload(*arguments)

    def gathering(*arguments: Any) -> Any:
        seen.append("gathered")
        return gather(*arguments)

    monkeypatch.setattr(table.PlanBuffers, "upload", uploading)
    monkeypatch.setattr(GpuEngine, "_gather", gathering)
    people = replace(PEOPLE, offsets=np.array([0, 32, 64]), users=np.arange(2), names=None)
    train(
        people, build_model("linear", 5, size=14), fedavg(cohort_size=2, batch_size=8), rounds=3, engine="cuda_graphs"
    )
    assert seen == [0, 0, 1, "gathered", 0, "gathered", "gathered"]  # first of all, to make the steps ready


def test_a_run_is_the_same_however_it_is_planned_and_repeats() -> None:
    runs = [
        train(
            PEOPLE,
            build_model("lenet", 5, size=14, width=4),
            fedavg(cohort_size=4, batch_size=8),
            rounds=4,
            engine="cuda_graphs",
            num_streams=n,
        )
        for n in (2, 2, 3)
    ]
    first, again, other = (FlatModel(run.model).read() for run in runs)
    assert torch.equal(first, again)
    assert far(other, first) < 1e-6
