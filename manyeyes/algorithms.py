"""Every named algorithm: FedAvg, and what each of the others puts in its place.

fedavgm(cohort_size=20, lr=0.03)                            # a named algorithm with options of your own
replace(fedvc(), example_weighting=ImportanceReweighting()) # any component exchanged for another
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial, wraps
from typing import Any, TypedDict, TypeVar, Unpack, cast

from manyeyes.components import (
    SGD,
    AdaptiveServer,
    AllClients,
    Centralized,
    Ditto,
    EpochBatching,
    FedDynCorrection,
    FedNovaWeighting,
    FineTune,
    HeadLayers,
    ImportanceReweighting,
    MatchingLayers,
    MimeLiteMomentum,
    NormLayers,
    ProximalTerm,
    ScaffoldCorrection,
    Schedule,
    ServerSGD,
    SizeWeightedSampler,
    UniformSampler,
    VirtualClientBatching,
    WeightByExamples,
    WeightUniformly,
)
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.registry import (
    OPTIONS_ATTRIBUTE,
    OptionSource,
    check_keywords,
    inherited_options,
    register,
    show_options,
)

Make = TypeVar("Make", bound=Callable[..., Algorithm])

NAMED_ALGORITHMS: dict[str, Callable[..., Algorithm]] = {}


class StepOptions(TypedDict, total=False):
    """The types of the options that every algorithm passes on to its `SGD`, for editors and type checkers."""

    weight_decay: float
    max_grad_norm: float
    schedule: Schedule


class SGDOptions(StepOptions, total=False):
    momentum: float
    persist_state: bool


class LocalOptions(StepOptions, total=False):
    """Those of `fedavg` that every algorithm made from it has."""

    cohort_size: int
    epochs: int
    batch_size: int
    lr: float
    max_examples: int
    persist_state: bool


class FedAvgMOptions(LocalOptions, total=False):
    head_epochs: int


class FedRepOptions(LocalOptions, total=False):
    momentum: float


class FedAvgOptions(FedAvgMOptions, FedRepOptions, total=False):
    """All options of `fedavg`."""


def named(*passed_on: Callable[..., Any], **sources: OptionSource) -> Callable[[Make], Make]:
    """Register a named algorithm under the name of its function.

    Parameters
    ----------
    passed_on
        The components or algorithms whose options its `**keywords` are.
    sources
        For each parameter, the component that declares the option that it sets, which gives its help text and bounds.
    """

    def decorate(make: Make) -> Make:
        options = cache(partial(inherited_options, make, passed_on, sources))

        @wraps(make)
        def checked(*args: Any, **keywords: Any) -> Algorithm:
            check_keywords(make.__name__, keywords, (option.name for option in options()))
            return make(*args, **keywords)

        setattr(checked, OPTIONS_ATTRIBUTE, options)
        show_options(checked, make, options())
        NAMED_ALGORITHMS[make.__name__] = checked
        return cast(Make, checked)

    return decorate


@named(EpochBatching, SGD, cohort_size=UniformSampler)
def fedavg(
    cohort_size: int = 10,
    epochs: int = 1,
    batch_size: int = 64,
    lr: float = 0.01,
    max_examples: int = 0,
    head_epochs: int = 0,
    **sgd_options: Unpack[SGDOptions],
) -> Algorithm:
    """McMahan et al. 2017, "Communication-efficient learning of deep networks from decentralized data"."""
    return Algorithm(
        sampler=UniformSampler(cohort_size),
        batching=EpochBatching(epochs, batch_size, max_examples, head_epochs),
        client_optimizer=SGD(lr, **sgd_options),
        client_weighting=WeightByExamples(),
        server_optimizer=ServerSGD(lr=1.0),
    )


@named(fedavg, momentum=ServerSGD)
def fedavgm(momentum: float = 0.9, **fedavg_options: Unpack[FedAvgMOptions]) -> Algorithm:
    """Hsu et al. 2019, "Measuring the effects of non-identical data distribution"."""
    return replace(fedavg(**fedavg_options), server_optimizer=ServerSGD(lr=1.0, momentum=momentum))


@named(fedavg, server_lr=(AdaptiveServer, "lr"))
def fedadam(server_lr: float = 0.1, **fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Reddi et al. 2021, "Adaptive federated optimization"; no bias correction."""
    return replace(fedavg(**fedavg_options), server_optimizer=AdaptiveServer("adam", server_lr))


@named(fedavg, server_lr=(AdaptiveServer, "lr"))
def fedyogi(server_lr: float = 0.1, **fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Reddi et al. 2021."""
    return replace(fedavg(**fedavg_options), server_optimizer=AdaptiveServer("yogi", server_lr))


@named(fedavg, server_lr=(AdaptiveServer, "lr"))
def fedadagrad(server_lr: float = 0.1, **fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Reddi et al. 2021; beta1 = 0, as there."""
    return replace(fedavg(**fedavg_options), server_optimizer=AdaptiveServer("adagrad", server_lr, beta1=0.0))


@named(fedavg, target=ImportanceReweighting)
def fedir(target: str | tuple[float, ...] = "population", **fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Hsu et al. 2020, section 5.2: importance reweighting; the target p(y) is the population's by default."""
    return replace(fedavg(**fedavg_options), example_weighting=ImportanceReweighting(target))


@named(VirtualClientBatching, SGD, cohort_size=SizeWeightedSampler, replacement=SizeWeightedSampler)
def fedvc(
    cohort_size: int = 10,
    virtual_client_size: int = 256,
    batch_size: int = 64,
    lr: float = 0.01,
    replacement: bool = False,
    **sgd_options: Unpack[SGDOptions],
) -> Algorithm:
    """Hsu et al. 2020, section 5.3: virtual clients of equal size."""
    return replace(
        fedavg(),
        sampler=SizeWeightedSampler(cohort_size, replacement),
        batching=VirtualClientBatching(virtual_client_size, batch_size),
        client_optimizer=SGD(lr, **sgd_options),
        client_weighting=WeightUniformly(),
    )


@named(fedavg, mu=ProximalTerm)
def fedprox(mu: float = 0.01, **fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Li et al. 2020, "Federated optimization in heterogeneous networks"."""
    return replace(fedavg(**fedavg_options), correction=ProximalTerm(mu))


@named(fedavg)
def scaffold(**fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Karimireddy et al. 2020, "SCAFFOLD: stochastic controlled averaging"; option II, uniform client weights."""
    return replace(fedavg(**fedavg_options), correction=ScaffoldCorrection(), client_weighting=WeightUniformly())


@named(fedavg, alpha=FedDynCorrection)
def feddyn(alpha: float = 0.01, **fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Acar et al. 2021, "Federated learning based on dynamic regularization"; uniform client weights."""
    return replace(fedavg(**fedavg_options), correction=FedDynCorrection(alpha), client_weighting=WeightUniformly())


@named(fedavg)
def fednova(**fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Wang et al. 2020, "Tackling the objective inconsistency problem in heterogeneous federated optimization"."""
    return replace(fedavg(**fedavg_options), client_weighting=FedNovaWeighting())


@named(fedavg, mime_momentum=(MimeLiteMomentum, "momentum"))
def mimelite(mime_momentum: float = 0.9, **fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Karimireddy et al. 2021, "Breaking the centralized barrier for cross-device federated learning"; momentum."""
    return replace(
        fedavg(**fedavg_options), correction=MimeLiteMomentum(mime_momentum), client_weighting=WeightUniformly()
    )


@named(SGD, batch_size=EpochBatching)
def centralized(
    batch_size: int = 64,
    lr: float = 0.01,
    momentum: float = 0.9,
    persist_state: bool = True,
    **sgd_options: Unpack[StepOptions],
) -> Algorithm:
    """The upper bound: all examples in one place; a round is an epoch, and the optimizer's state persists."""
    return replace(
        fedavg(),
        sampler=Centralized(),
        batching=EpochBatching(1, batch_size),
        client_optimizer=SGD(lr, momentum=momentum, persist_state=persist_state, **sgd_options),
    )


@named(fedavg)
def local_only(**fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """The lower bound: every user trains alone, and nothing is shared."""
    return replace(fedavg(**fedavg_options), sampler=AllClients(), personal_layers=MatchingLayers(("*",)))


@named(fedavg, head_layers=(HeadLayers, "num_layers"))
def fedper(head_layers: int = 2, **fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Arivazhagan et al. 2019, "Federated learning with personalization layers": the head stays with the client."""
    return replace(fedavg(**fedavg_options), personal_layers=HeadLayers(head_layers))


@named(fedper)
def fedrep(head_layers: int = 1, head_epochs: int = 10, **fedavg_options: Unpack[FedRepOptions]) -> Algorithm:
    """Collins et al. 2021, "Exploiting shared representations for personalized federated learning"."""
    return fedper(head_layers, head_epochs=head_epochs, **fedavg_options)


@named(fedavg)
def fedbn(**fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Li et al. 2021, "FedBN: federated learning on non-IID features via local batch normalization"."""
    return replace(fedavg(**fedavg_options), personal_layers=NormLayers())


@named(fedavg, lam=Ditto)
def ditto(lam: float = 0.1, **fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """Li et al. 2021, "Ditto: fair and robust federated learning through personalization"; `lam` is lambda."""
    return replace(fedavg(**fedavg_options), personal_model=Ditto(lam))


@named(fedavg, adapt_epochs=(FineTune, "epochs"))
def finetuned(adapt_epochs: int = 1, **fedavg_options: Unpack[FedAvgOptions]) -> Algorithm:
    """FedAvg, then local fine-tuning: Yu et al. 2020, "Salvaging federated learning by local adaptation"."""
    return replace(fedavg(**fedavg_options), adaptation=FineTune(adapt_epochs))


for _name, _make in NAMED_ALGORITHMS.items():
    register("algorithm", _name)(_make)
