"""Every named algorithm: FedAvg, and what each of the others puts in its place.

fedavgm(cohort=20, lr=0.03)                            # a named algorithm with numbers of your own
replace(fedvc(), reweigh=ImportanceRatio())            # any slot exchanged for another
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from manyeyes.algorithm import Algorithm
from manyeyes.parts import (
    SGD,
    ByExamples,
    BySize,
    ByWalk,
    ControlVariates,
    Ditto,
    Epochs,
    Equally,
    Everyone,
    FineTune,
    FixedSize,
    Head,
    ImportanceRatio,
    Layers,
    Norms,
    Pooled,
    Proximal,
    ServerAdaptive,
    ServerMomentum,
    ServerSGD,
    Uniform,
)


def fedavg(cohort: int = 10, epochs: int = 1, batch: int = 64, lr: float = 0.01, **local: Any) -> Algorithm:
    """McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data"."""
    return Algorithm(
        cohort=Uniform(cohort),
        draw=Epochs(epochs, batch),
        local=SGD(lr, **local),
        weigh=ByExamples(),
        server=ServerSGD(lr=1.0),
    )


def fedavgm(momentum: float = 0.9, **fedavg_options: Any) -> Algorithm:
    """Hsu et al. 2019, "Measuring the effects of non-identical data distribution"."""
    return replace(fedavg(**fedavg_options), server=ServerSGD(lr=1.0, momentum=momentum))


def fedadam(server_lr: float = 0.1, **fedavg_options: Any) -> Algorithm:
    """Reddi et al. 2021, "Adaptive federated optimization"; no bias correction."""
    return replace(fedavg(**fedavg_options), server=ServerAdaptive("adam", server_lr))


def fedyogi(server_lr: float = 0.1, **fedavg_options: Any) -> Algorithm:
    """Reddi et al. 2021."""
    return replace(fedavg(**fedavg_options), server=ServerAdaptive("yogi", server_lr))


def fedadagrad(server_lr: float = 0.1, **fedavg_options: Any) -> Algorithm:
    """Reddi et al. 2021; beta1 = 0, as there."""
    return replace(fedavg(**fedavg_options), server=ServerAdaptive("adagrad", server_lr, beta1=0.0))


def fedir(target: tuple[float, ...] | None = None, **fedavg_options: Any) -> Algorithm:
    """Hsu et al. 2020, section 5.2: importance reweighting; `target` is p(y), by default the population's."""
    return replace(fedavg(**fedavg_options), reweigh=ImportanceRatio(target))


def fedvc(cohort: int = 10, examples: int = 256, batch: int = 64, lr: float = 0.01, **local: Any) -> Algorithm:
    """Hsu et al. 2020, section 5.3: virtual clients of equal size."""
    draw = FixedSize(examples, batch)
    return replace(fedavg(), cohort=BySize(cohort), draw=draw, local=SGD(lr, **local), weigh=Equally())


def fedprox(mu: float = 0.01, **fedavg_options: Any) -> Algorithm:
    """Li et al. 2020, "Federated optimization in heterogeneous networks"."""
    return replace(fedavg(**fedavg_options), correct=Proximal(mu))


def scaffold(**fedavg_options: Any) -> Algorithm:
    """Karimireddy et al. 2020, "SCAFFOLD: stochastic controlled averaging"; option II, clients weigh the same."""
    return replace(fedavg(**fedavg_options), correct=ControlVariates(), weigh=Equally())


def fednova(**fedavg_options: Any) -> Algorithm:
    """Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization"."""
    return replace(fedavg(**fedavg_options), weigh=ByWalk())


def mimelite(beta: float = 0.9, **fedavg_options: Any) -> Algorithm:
    """Karimireddy et al. 2021, "Breaking the centralized barrier for cross-device federated learning"; momentum."""
    return replace(fedavg(**fedavg_options), correct=ServerMomentum(beta), weigh=Equally())


def centralised(batch: int = 64, lr: float = 0.01, momentum: float = 0.9, **local: Any) -> Algorithm:
    """The upper bound: everyone's examples in one place; a round is an epoch, and the optimiser's state is kept."""
    local_sgd = SGD(lr, momentum=momentum, keep=True, **local)
    return replace(fedavg(), cohort=Pooled(), draw=Epochs(1, batch), local=local_sgd)


def local_only(**fedavg_options: Any) -> Algorithm:
    """The lower bound: every user trains alone, and nothing is shared."""
    return replace(fedavg(**fedavg_options), cohort=Everyone(), personal=Layers(("*",)))


def fedper(layers: int = 2, **fedavg_options: Any) -> Algorithm:
    """Arivazhagan et al. 2019, "Federated learning with personalization layers": the head stays with the client."""
    return replace(fedavg(**fedavg_options), personal=Head(layers))


def fedrep(layers: int = 1, head_epochs: int = 10, epochs: int = 1, batch: int = 64, **options: Any) -> Algorithm:
    """Collins et al. 2021, "Exploiting shared representations for personalized federated learning"."""
    return replace(fedper(layers, **options), draw=Epochs(epochs, batch, head=head_epochs))


def fedbn(**fedavg_options: Any) -> Algorithm:
    """Li et al. 2021, "FedBN: federated learning on non-IID features via local batch normalization"."""
    return replace(fedavg(**fedavg_options), personal=Norms())


def ditto(pull: float = 0.1, **fedavg_options: Any) -> Algorithm:
    """Li et al. 2021, "Ditto: fair and robust federated learning through personalization"; `pull` is lambda."""
    return replace(fedavg(**fedavg_options), beside=Ditto(pull))


def finetuned(adapt_epochs: int = 1, **fedavg_options: Any) -> Algorithm:
    """FedAvg, then local fine-tuning: Yu et al. 2020, "Salvaging federated learning by local adaptation"."""
    return replace(fedavg(**fedavg_options), adapt=FineTune(adapt_epochs))


NAMED: dict[str, Callable[..., Algorithm]] = {
    make.__name__: make
    for make in (
        fedavg,
        fedavgm,
        fedadam,
        fedyogi,
        fedadagrad,
        fedir,
        fedvc,
        fedprox,
        scaffold,
        fednova,
        mimelite,
        centralised,
        local_only,
        fedper,
        fedrep,
        fedbn,
        ditto,
        finetuned,
    )
}
