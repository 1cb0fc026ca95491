"""Privacy of users: bounded updates, noise on their sum, and the budget that both spend."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from manyeyes.components.client_weighting import WeightUniformly
from manyeyes.components.compressors import BF16, Int8, TopK
from manyeyes.components.example_weighting import ImportanceReweighting
from manyeyes.components.samplers import AllClients, PoissonSampler, UniformSampler
from manyeyes.components.validation import require_at_least, require_fraction, require_int, require_positive
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.engine import CohortResult, RoundContext
from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Population
from manyeyes.core.registry import register
from manyeyes.core.state import DivergenceError
from manyeyes.privacy.accountant import EpsilonCurve, PrivacyAccountant, check_delta, update_noise
from manyeyes.privacy.calibration import Simulation, auto_delta, min_noise_multiplier
from manyeyes.privacy.noise import GaussianSource

PrivacyState = dict[str, Tensor]
FLOAT = torch.finfo(torch.float32)
SAMPLING = {PoissonSampler: "poisson", UniformSampler: "fixed", AllClients: "none"}
COVERED: dict[str, tuple[type, ...]] = {
    "sampler": tuple(SAMPLING),
    "client_weighting": (WeightUniformly,),
    "example_weighting": (ImportanceReweighting,),
}


@dataclass(frozen=True)
class Clip:
    """No update is longer than this."""

    norm: float = 1.0

    def __post_init__(self) -> None:
        require_positive("clip", self.norm)

    def noise_multipliers(self, noise: float, cohort: int) -> tuple[float, float]:
        """Of a noise multiplier that is spent on `cohort` clients: that of their sum, and the count's deviation."""
        return noise, 0.0


@dataclass(frozen=True)
class AdaptiveClip:
    """A length that follows a quantile of the updates' own: C <- C exp(-rate (b - quantile)) (Andrew et al. 2021).

    b, the share of clients within C, is noisy too, and pays with a part of the noise multiplier.
    """

    norm: float = 0.1  # in the first round
    target_quantile: float = 0.5
    learning_rate: float = 0.2
    clipped_count_stddev: float = (
        0.0  # deviation of the noise on how many are within; 0: a twentieth of the cohort, or z if more
    )

    def __post_init__(self) -> None:
        require_positive("clip", self.norm)
        require_positive("quantile", self.target_quantile)  # a clip that follows the least length goes to 0
        require_fraction("quantile", self.target_quantile)
        require_positive("clip rate", self.learning_rate)
        require_at_least("count_std", self.clipped_count_stddev, 0)

    def noise_multipliers(self, noise: float, cohort: int) -> tuple[float, float]:
        std = self.clipped_count_stddev or max(cohort / 20, noise)  # at z, the update's own noise grows by 15 %
        return update_noise(noise, std), std

    def update(self, clip: float, share: float) -> float:
        change = -self.learning_rate * (share - self.target_quantile)
        if not math.log(FLOAT.tiny) < math.log(clip) + change < math.log(FLOAT.max):
            raise DivergenceError("the clip has left the numbers of a float32 (lower the clip rate or the noise)")
        return clip * math.exp(change)


@register("privacy", "central")
@dataclass(frozen=True)
class CentralDP:
    """The server adds Gaussian noise to the sum of clipped updates: (epsilon, delta) for every user over all rounds.

    `noise_cohort` is FLAIR's way to study large cohorts (section 5.1): the mean of a small one carries the noise that
    the mean of so many clients would, and the epsilon is theirs.
    """

    epsilon: float = 2.0  # the budget: no round is played that would exceed it; 0: none
    noise_multiplier: float = 0.0  # deviation on the sum, in clips; 0: the least that keeps within epsilon
    delta: float = 0.0  # 0: users^-1.1
    clip: Clip | AdaptiveClip = Clip()
    noise_cohort_size: int = 0  # 0: the clients that train
    accountant: str = "rdp"
    reproducible_noise: bool = False  # noise from the run's seed, which whoever knows it can take off again
    # What is accounted, once a run knows its users and rounds; of two runs with the same noise one may be longer.
    simulation: Simulation | None = field(default=None, repr=False)
    covered = COVERED | {"compressor": (BF16, Int8, TopK)}

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("noise", self.noise_multiplier)):
            require_at_least(name, value, 0)
        if self.delta:
            check_delta(self.delta)
        require_int("noise_cohort", self.noise_cohort_size, 0)
        if not self.epsilon and not self.noise_multiplier:
            raise ValueError("private training needs a budget or a noise: set epsilon, noise or both")

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if type(algorithm.sampler) not in SAMPLING:
            return f"no account is known for clients drawn as by {type(algorithm.sampler).__name__}: select poisson"
        users = len(population.user_ids)
        if self.noise_cohort_size > users:
            return f"noise_cohort is {self.noise_cohort_size}: there are {users} users, and it can be no more than they are"
        if self.noise_cohort_size and isinstance(algorithm.sampler, AllClients):
            return "noise_cohort stands for more clients a round than train, and everyone does: set it to 0"
        return _refuse(algorithm)

    def calibrate(self, algorithm: Algorithm, population: Population, rounds: int) -> CentralDP:
        """With the noise that the budget wants of a run of so many rounds."""
        users = len(population.user_ids)
        cohort = (
            algorithm.sampler.cohort_size if isinstance(algorithm.sampler, PoissonSampler | UniformSampler) else users
        )
        delta = self.delta or auto_delta(users)
        large = self.noise_cohort_size or cohort
        account = PrivacyAccountant(
            users, large, rounds, self.noise_multiplier or 1.0, SAMPLING[type(algorithm.sampler)], self.accountant
        )
        noise = self.noise_multiplier or min_noise_multiplier(account, self.epsilon, delta)
        self.clip.noise_multipliers(noise, large)  # which refuses a count too noisy or not noisy enough, before round 1
        return replace(
            self,
            noise_multiplier=noise,
            delta=delta,
            simulation=Simulation(replace(account, noise_multiplier=noise), cohort),
        )

    @property
    def accounting(self) -> Simulation:
        assert self.simulation is not None, "train() settles what is private; call `settled` first"
        return self.simulation

    def init(self) -> PrivacyState:
        return {"clip": torch.tensor(self.clip.norm, dtype=torch.float64)}

    def clipping_norm(self, privacy_state: PrivacyState) -> float:
        return float(privacy_state["clip"])

    def privatize(
        self, result: CohortResult, plan: RoundPlan, context: RoundContext, privacy_state: PrivacyState, noise_seed: int
    ) -> tuple[Tensor, PrivacyState]:
        """The noisy mean of the updates, over as many clients as are expected, and the next clip."""
        normals, cohort, clip = GaussianSource(noise_seed), self.accounting.cohort, self.clipping_norm(privacy_state)
        scale = cohort / self.accounting.account.cohort_size
        noise, count_std = self.clip.noise_multipliers(self.noise_multiplier, self.accounting.account.cohort_size)
        total = result.update_W + gaussian(result.update_W, scale * noise * clip, context.personal_mask, normals)
        if isinstance(self.clip, AdaptiveClip):
            within = float((result.accepted_K & (result.norm_K <= clip)).sum())
            # Each client adds 1/2 or -1/2, so that one more or less moves the count by no more than that.
            share = (within - len(plan.clients) / 2 + scale * count_std * normals.scalar()) / cohort + 0.5
            clip = self.clip.update(clip, share)
        return total / cohort, {"clip": torch.tensor(clip, dtype=torch.float64)}

    def epsilon_spent(self, rounds: int, privacy_state: PrivacyState) -> float:
        """Epsilon after so many rounds."""
        return EpsilonCurve(self.accounting.account, self.delta).epsilon_spent(rounds)

    def max_rounds(self, rounds: int) -> int:
        """How many of so many rounds the budget allows."""
        if not self.epsilon:
            return rounds
        low, high = 0, rounds + 1  # the most that is known to be within, the least that is known to be beyond
        while high - low > 1:
            middle = (low + high) // 2 if high <= rounds else rounds
            if self.epsilon_spent(middle, {}) <= self.epsilon * (1 + 1e-12):  # rounding
                low = middle
            else:
                high = middle
        return low

    def describe(self) -> str:
        """For a report."""
        source = "the run's seed: it repeats, and protects nobody from those who know the seed"
        if not self.reproducible_noise:
            source = "a seed that the operating system drew and nobody kept"
        clip = f"clipped at {self.clip.norm:g}"
        if isinstance(self.clip, AdaptiveClip):
            clip = (
                f"clipped near the {self.clip.target_quantile:g} quantile of their lengths, from {self.clip.norm:g} on"
            )
        return (
            f"{self.accounting.describe(self.delta)} Updates are {clip}; the noise multiplier is {self.noise_multiplier:.4g} "
            f"(accountant {self.accountant}); the noise comes from {source}. Who took part in which round follows from "
            "the run's seed: seed, log and checkpoints are the server's own, and only the model is promised about."
        )


@register("privacy", "local")
@dataclass(frozen=True)
class LocalDP:
    """Every client adds Gaussian noise to its own clipped update, and trusts nobody.

    The sum of the clients' noises is drawn at once, which has the same distribution; one whose update is not finite
    sends noise alone. A user's epsilon grows with each round it takes part in, at sensitivity 2 C: its update could
    have been any other. There is no budget to stop at.
    """

    noise_multiplier: float = 1.0  # deviation of a client's own noise, in clips
    clip: float = 1.0
    delta: float = 0.0  # 0: users^-1.1
    reproducible_noise: bool = False
    covered = COVERED

    def __post_init__(self) -> None:
        require_positive("noise", self.noise_multiplier)
        require_positive("clip", self.clip)
        if self.delta:
            check_delta(self.delta)

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if type(algorithm.sampler) not in SAMPLING:
            return (
                f"{type(algorithm.sampler).__name__} looks at what clients hold before they add noise: select uniform"
            )
        if algorithm.compressor is not None:
            return "clients would pack their own noise too, which is added to the sum here: leave out compress"
        return _refuse(algorithm)

    def calibrate(self, algorithm: Algorithm, population: Population, rounds: int) -> LocalDP:
        return replace(self, delta=self.delta or auto_delta(len(population.user_ids)))

    def init(self) -> PrivacyState:
        return {"times": torch.zeros(0, dtype=torch.int64)}  # how often each user has taken part, by its number

    def clipping_norm(self, privacy_state: PrivacyState) -> float:
        return self.clip

    def privatize(
        self, result: CohortResult, plan: RoundPlan, context: RoundContext, privacy_state: PrivacyState, noise_seed: int
    ) -> tuple[Tensor, PrivacyState]:
        """The mean of the noisy updates."""
        std = self.noise_multiplier * self.clip * math.sqrt(len(plan.clients))
        total = result.update_W + gaussian(result.update_W, std, context.personal_mask, GaussianSource(noise_seed))
        keys = np.array([client.client_id for client in plan.clients], np.int64)
        times = np.zeros(max(len(privacy_state["times"]), keys.max(initial=-1) + 1), np.int64)
        times[: len(privacy_state["times"])] = privacy_state["times"].numpy()
        np.add.at(times, keys, 1)
        return total / max(len(plan.clients), 1), {"times": torch.from_numpy(times)}

    def epsilon_spent(self, rounds: int, privacy_state: PrivacyState) -> float:
        """Epsilon of the user who has taken part most often."""
        most = int(privacy_state["times"].max()) if len(privacy_state["times"]) else 0
        return EpsilonCurve(PrivacyAccountant(1, 1, 1, self.noise_multiplier / 2, "none"), self.delta).epsilon_spent(
            most
        )

    def max_rounds(self, rounds: int) -> int:
        return rounds

    def describe(self) -> str:
        return (
            f"Every client adds noise of {self.noise_multiplier:g} clips to its own update, clipped at {self.clip:g}: local "
            f"differential privacy with delta {self.delta:.3g}, at the epsilon of whoever took part most often "
            "(neighbours: one user replaced by another)."
        )


def gaussian(like: Tensor, std: float, personal: Tensor | None, normals: GaussianSource) -> Tensor:
    """Noise for what is sent; what stays with the clients gets none."""
    noise = std * normals.sample_like(like)
    return noise if personal is None else noise * ~personal


def _refuse(algorithm: Algorithm) -> str | None:
    """What would tell more of a client than its bounded update, or let it count for more than one."""
    if algorithm.client_weighting != WeightUniformly():
        return "private sums count every client alike: set weigh to equally"
    if algorithm.correction is not None and algorithm.correction.uploads:
        return f"{type(algorithm.correction).__name__} has clients report more than their update: it cannot be private"
    if (
        isinstance(algorithm.example_weighting, ImportanceReweighting)
        and algorithm.example_weighting.target_distribution is None
    ):
        return "FedIR would read p(y) off all users: give the target distribution"
    return None
