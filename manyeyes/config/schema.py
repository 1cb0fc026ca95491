"""The settings of `manyeyes run`, each with its type, its default and one line that says what it means."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING


def setting(default: Any, meaning: str) -> Any:
    """A field with its meaning; lists and nested settings are made anew each time."""
    if isinstance(default, type | list):
        factory = default if isinstance(default, type) else default.copy
        return field(default_factory=factory, metadata={"meaning": meaning})
    return field(default=default, metadata={"meaning": meaning})


@dataclass
class ScheduleConfig:
    kind: str = setting("constant", "constant, polynomial or cosine")
    warmup: int = setting(0, "rounds of linear warm-up; the first round already learns")
    rounds: int = setting(0, "length of the schedule, warm-up included; 0: the whole run")
    final: float = setting(0.0, "factor that a polynomial or cosine schedule ends at")
    power: float = setting(1.0, "power of the polynomial")


@dataclass
class AlgorithmConfig:
    name: str = setting("fedavg", "what it is called in tables")
    select: str = setting("uniform", "who takes part: uniform, poisson, by_size, everyone or pooled (centralised)")
    cohort: int = setting(10, "clients a round, for uniform, by_size and (on average) poisson")
    epochs: int = setting(1, "passes over a client's examples in a round")
    batch: int = setting(64, "examples a local step")
    limit: int = setting(0, "at most so many of a client's examples, drawn anew each round; 0: all")
    examples: int = setting(0, "FedVC: exactly so many examples for every client, instead of epochs; 0: off")
    optimizer: str = setting("sgd", "how a client steps: sgd or adam")
    lr: float = setting(0.01, "local learning rate")
    momentum: float = setting(0.0, "local momentum, for sgd")
    beta1: float = setting(0.9, "local adam: decay of the mean")
    beta2: float = setting(0.999, "local adam: decay of the square")
    eps: float = setting(1e-8, "local adam: added to the root of the square")
    weight_decay: float = setting(0.0, "local weight decay, added to the gradient")
    clip: float = setting(0.0, "bound on the norm of each local gradient; 0: none")
    keep: bool = setting(False, "carry the local optimizer's state from round to round")
    schedule: ScheduleConfig = setting(ScheduleConfig, "local learning rate over rounds")
    weigh: str = setting("examples", "how much a client counts: examples, equally or walk (FedNova)")
    importance: bool = setting(False, "FedIR: weigh examples by p(y) / q(y)")
    target: list[float] = setting([], "FedIR: p(y), one number for each class; empty: the population's own")
    correction: str = setting("none", "of local gradients: none, proximal, control_variates or server_momentum")
    mu: float = setting(0.01, "strength of the proximal correction (FedProx)")
    beta: float = setting(0.9, "momentum of the server_momentum correction (Mime-lite)")
    personal: str = setting("none", "which layers stay with each client: none, head (FedPer), norms (FedBN) or layers")
    head_layers: int = setting(2, "with personal=head: how many layers the head has, the classifier first")
    layers: list[str] = setting([], "with personal=layers: name patterns, such as [fc.*]")
    head_epochs: int = setting(0, "FedRep: so many epochs of the personal layers alone before those of the others")
    ditto: float = setting(0.0, "strength that ties a model of each client's own to the server's; 0: there is none")
    adapt_epochs: int = setting(0, "epochs that a client fine-tunes the model for before it is evaluated; 0: none")
    server: str = setting("sgd", "how the server steps: sgd, adam, yogi or adagrad")
    server_lr: float = setting(1.0, "server learning rate")
    server_momentum: float = setting(0.0, "server momentum, for sgd (FedAvgM)")
    server_beta1: float = setting(0.9, "adaptive servers: decay of the mean")
    server_beta2: float = setting(0.99, "adaptive servers: decay of the square")
    server_tau: float = setting(1e-3, "adaptive servers: added to the root of the square")
    server_bias_correction: bool = setting(False, "adam and yogi: correct for bias as Adam does; Reddi et al. do not")
    server_schedule: ScheduleConfig = setting(ScheduleConfig, "server learning rate over rounds")


@dataclass
class PrivacyConfig:
    name: str = setting("none", "none, central (noise by the server) or local (noise by each client)")
    epsilon: float = setting(2.0, "central: the budget, which ends the run; 0: none")
    noise: float = setting(0.0, "deviation of the noise in clips; central, 0: the least that keeps within epsilon")
    delta: float = setting(0.0, "0: users^-1.1")
    clip: float = setting(1.0, "length of the longest update, of the first round where it adapts")
    quantile: float = setting(0.0, "central: the clip follows this quantile of the updates' lengths; 0: it is fixed")
    clip_rate: float = setting(0.2, "central: how fast the clip follows")
    noise_cohort: int = setting(0, "central: simulate the noise of so many clients a round; 0: of those that train")
    accountant: str = setting("rdp", "central: rdp (moments) or pld (tighter, slower)")
    reproducible_noise: bool = setting(False, "draw the noise from the seed: repeats, and protects nobody")


@dataclass
class CompressConfig:
    name: str = setting("none", "how updates are packed: none, bf16, int8 (stochastic rounding) or topk")
    chunk: int = setting(1024, "int8: numbers that share a scale")
    share: float = setting(0.01, "topk: the share of the numbers that is sent; the rest is owed by the client")


@dataclass
class AggregateConfig:
    name: str = setting("mean", "how updates become one: mean (by weight), median, trimmed, krum or multikrum")
    trim: float = setting(0.1, "trimmed: the share that is cut off at each end")
    wrong: int = setting(1, "krum, multikrum: clients of a round that may be wrong")
    chosen: int = setting(5, "multikrum: clients that are averaged")


@dataclass
class WorldConfig:
    name: str = setting("synthetic", "procedural photographs, no download")
    users: int = setting(1000, "how many people")
    size: int = setting(32, "pixels a side, 32 to 256")
    seed: int = setting(0, "decides every person and photo")
    coarse: int = setting(10, "coarse classes")
    fine: int = setting(100, "fine classes, each within a coarse one")
    alpha: float = setting(1.0, "how alike tastes are: small, everyone photographs few things; large, all the same")
    images_per_user: int = setting(0, "photos a person; 0: heavy-tailed as FLAIR")
    class_imbalance: float = setting(1.0, "how long-tailed the classes are; 0: all equally common")
    split: str = setting("users", "users: each person is in one split; per_user: everyone has a train and a test part")
    task: str = setting("single", "what is predicted: single, coarse, fine or rating")


@dataclass
class StoreConfig:
    name: str = setting("store", "a dataset that manyeyes data prepare made, or an HDF5 file of FLAIR")
    path: str = setting(MISSING, "its folder or file")
    task: str = setting("", "which of its labels are predicted; empty: those that come first")
    users: int = setting(0, "deal its images out anew to so many clients, as the run's seed decides; 0: do not")
    classes_per_client: int = setting(4, "with data.users: classes that each client holds")


@dataclass
class ModelConfig:
    name: str = setting("lenet", "linear, lenet, resnet18, resnet34, mobilenet_v1 or mobilenet_v2")
    norm: str = setting("group", "group, frozen_batch or batch")
    width: int = setting(64, "lenet: channels of its convolutions; 64 is the paper's")
    bottleneck: int = setting(0, "mobilenet_v2: a layer of so many numbers before the classifier; 0: none")
    weights: str = setting("", "pretrained weights: a file, a URL or imagenet; empty: from scratch")
    train: str = setting("all", "which layers train: all, or last:n")


@dataclass
class AugmentConfig:
    crop: int = setting(0, "side of the random crop; 0: the image's own size")
    pad: int = setting(0, "black border added before cropping")
    flip_horizontal: bool = setting(False, "flip half of the training images left to right")
    flip_vertical: bool = setting(False, "flip half of the training images upside down")
    scale_min: float = setting(0.0, "random-resized crop: least share of the area that is cut out and resized; 0: off")
    scale_max: float = setting(1.0, "random-resized crop: largest share of the area")
    ratio_min: float = setting(0.75, "random-resized crop: least width / height of what is cut out")
    ratio_max: float = setting(4 / 3, "random-resized crop: largest width / height of what is cut out")
    mean: list[float] = setting([0.5] * 3, "subtracted from red, green, blue in 0..1; ImageNet: [0.485,0.456,0.406]")
    std: list[float] = setting([0.25] * 3, "what red, green, blue are then divided by; ImageNet: [0.229,0.224,0.225]")


@dataclass
class EngineConfig:
    name: str = setting("auto", "auto, reference, ranks (processes), vector (side by side) or lanes (CUDA graphs)")
    device: str = setting("auto", "auto, cpu or cuda")
    precision: str = setting("auto", "float32, tf32 or bf16; auto: float32, on a GPU with the products of TF32")
    compile: bool = setting(True, "compile steps, on a GPU")
    workers: int = setting(0, "ranks: processes; 0: one a core")
    lanes: int = setting(0, "lanes: clients that train at the same time; 0: the number that is best here")
    threads: int = setting(0, "CPU threads; 0: PyTorch's choice")
    resident: str = setting("auto", "where images are kept: device, host, or auto: on a GPU where they fit")
    prefetch: int = setting(1024, "MiB of a store's images that are read for the next round while one trains; 0: none")


@dataclass
class TrackConfig:
    to: list[str] = setting([], "who else follows the run: tensorboard, mlflow, wandb")


@dataclass
class Config:
    data: Any = setting(MISSING, "the population")
    model: ModelConfig = setting(ModelConfig, "what is trained")
    algorithm: AlgorithmConfig = setting(AlgorithmConfig, "how it is trained")
    augment: AugmentConfig = setting(AugmentConfig, "what training does to images")
    privacy: PrivacyConfig = setting(PrivacyConfig, "what hides each user")
    compress: CompressConfig = setting(CompressConfig, "how updates are packed")
    aggregate: AggregateConfig = setting(AggregateConfig, "how updates become one")
    engine: EngineConfig = setting(EngineConfig, "what computes it")
    track: TrackConfig = setting(TrackConfig, "who follows it")
    rounds: int = setting(100, "how many rounds")
    seed: int = setting(0, "decides initial weights, cohorts, batches and crops")
    evaluate_every: int = setting(10, "rounds between evaluations; 0: only the first and the last")
    evaluate_on: str = setting("test", "which split is evaluated: test or val")
    evaluate_early: float = setting(0.0, "evaluate at least every so large a share of the rounds played; 0: do not")
    batches: int = setting(0, "end when the largest clients of the rounds have taken so many batches; 0: by rounds")
    best_on: str = setting("", "test and keep the model of the lowest loss on this split, such as val; empty: the last")
    checkpoint_seconds: float = setting(60.0, "at most so many seconds of work are lost by a crash")
    client_memory: int = setting(1024, "MiB of what clients keep that stay in memory; the rest is in the run's folder")
    folder: str = setting("", "where the run is kept; empty: runs/ and the time")
    resume: str = setting("", "the folder of a run to continue")
