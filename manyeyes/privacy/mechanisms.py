"""Differential privacy of users: clipped updates, noise on their sum, and the budget that both spend."""

import math
from bisect import bisect_right
from dataclasses import field, replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from manyeyes.components.compressors import BF16, Int8, TopK
from manyeyes.components.samplers import AllClients, PoissonSampler, UniformSampler
from manyeyes.components.weighting import POPULATION, ImportanceReweighting, WeightUniformly
from manyeyes.core.algorithm import Algorithm
from manyeyes.core.plan import RoundPlan
from manyeyes.core.population import Population
from manyeyes.core.registry import check_options, component, option, register
from manyeyes.core.state import CohortResult, DivergenceError, RoundContext
from manyeyes.privacy.accountant import METHODS, PrivacyAccountant, update_noise
from manyeyes.privacy.calibration import Simulation, auto_delta, min_noise_multiplier

PrivacyState = dict[str, Tensor]
FLOAT32 = torch.finfo(torch.float32)
SAMPLING = {PoissonSampler: "poisson", UniformSampler: "fixed", AllClients: "none"}
WEIGHTINGS = {"client_weighting": (WeightUniformly,), "example_weighting": (ImportanceReweighting,)}
COVERED: dict[str, tuple[type, ...]] = {"sampler": tuple(SAMPLING), **WEIGHTINGS}
DELTA_HELP = "probability that the guarantee fails; 0: users^-1.1"
REPRODUCIBLE_NOISE_HELP = "draw the noise from the seed: the run repeats, and the noise protects no one"


@register("privacy", "flair", clipping_norm=0.1, target_quantile=0.1, noise_cohort_size=5000)  # the paper's PFL rows
@component("privacy", "central")
class CentralDP:
    """The server adds Gaussian noise to the sum of clipped updates: (epsilon, delta) for every user over all rounds.

    `noise_cohort_size` is FLAIR's way to study large cohorts (section 5.1): the mean of a small cohort carries the
    noise that the mean of a large one would, and the reported epsilon is the large cohort's.
    """

    epsilon: float = option(2.0, "the budget, which ends the run; 0: none", minimum=0)
    noise_multiplier: float = option(0.0, "noise stddev / clipping norm; 0: the smallest within epsilon", minimum=0)
    delta: float = option(0.0, DELTA_HELP, minimum=0, below=1)
    clipping_norm: float = option(1.0, "bound on the update norm; with a target quantile: in the first round", above=0)
    target_quantile: float = option(0.0, "quantile of the update norms to clip at; 0: fixed norm", minimum=0, below=1)
    clip_learning_rate: float = option(0.2, "how fast the clipping norm follows", above=0)
    clipped_count_stddev: float = option(0.0, "noise stddev on the unclipped count; 0: cohort / 20", minimum=0)
    noise_cohort_size: int = option(0, "clients per round whose noise is simulated; 0: those that train", minimum=0)
    accountant: str = option("rdp", "rdp (moments) or pld (tighter, slower)", choices=METHODS)
    reproducible_noise: bool = option(False, REPRODUCIBLE_NOISE_HELP)
    simulation: Simulation | None = field(default=None, repr=False)  # set by `calibrate`
    covered = COVERED | {"compressor": (BF16, Int8, TopK)}

    def __post_init__(self) -> None:
        check_options(self)
        if not self.epsilon and not self.noise_multiplier:
            raise ValueError("privacy needs a budget or noise: set privacy.epsilon, privacy.noise_multiplier or both")

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if type(algorithm.sampler) not in SAMPLING:
            name = type(algorithm.sampler).__name__
            return f"privacy=central has no accounting for sampler={name}: set sampler=poisson, uniform or all"
        size, num_users = self.noise_cohort_size, len(population.user_ids)
        if size > num_users:
            return f"privacy.noise_cohort_size={size} is more than the {num_users} users of the data: set a smaller one"
        if size and isinstance(algorithm.sampler, AllClients):
            return f"privacy.noise_cohort_size={size} needs a cohort, and sampler=all has none: set it to 0"
        return _incompatibility("privacy=central", algorithm)

    def calibrate(self, algorithm: Algorithm, population: Population, rounds: int) -> "CentralDP":
        """Return the mechanism with the noise that the budget needs for a run of that many rounds."""
        sampler, num_users = algorithm.sampler, len(population.user_ids)
        cohort_size = sampler.cohort_size if isinstance(sampler, PoissonSampler | UniformSampler) else num_users
        sizes = num_users, self.noise_cohort_size or cohort_size, rounds
        delta = self.delta or auto_delta(num_users)
        accountant = PrivacyAccountant(*sizes, self.noise_multiplier or 1.0, SAMPLING[type(sampler)], self.accountant)
        noise_multiplier = self.noise_multiplier or min_noise_multiplier(accountant, self.epsilon, delta)
        simulation = Simulation(replace(accountant, noise_multiplier=noise_multiplier), cohort_size)
        calibrated = replace(self, noise_multiplier=noise_multiplier, delta=delta, simulation=simulation)
        calibrated.noise_split()  # refuses an impossible split of the noise before round 1
        return calibrated

    @property
    def accounting(self) -> Simulation:
        if self.simulation is None:
            raise ValueError("privacy is not calibrated: train() does it, or call privacy.calibrate(...) first")
        return self.simulation

    def init(self) -> PrivacyState:
        return {"clip": torch.tensor(self.clipping_norm, dtype=torch.float64)}

    def clipping_bound(self, privacy_state: PrivacyState) -> float:
        return float(privacy_state["clip"])

    def privatize(
        self, result: CohortResult, plan: RoundPlan, context: RoundContext, privacy_state: PrivacyState, noise_seed: int
    ) -> tuple[Tensor, PrivacyState]:
        """Return the noisy mean update over the expected number of clients, and the next clipping norm."""
        source, norm = GaussianSource(noise_seed), self.clipping_bound(privacy_state)
        cohort_size = self.accounting.cohort_size
        scale = cohort_size / self.accounting.accountant.cohort_size
        noise_multiplier, count_stddev = self.noise_split()
        stddev = scale * noise_multiplier * norm
        total = result.update_W + source.noise_like(result.update_W, stddev, context.personal_mask)
        if self.target_quantile:
            num_unclipped = float((result.accepted_K & (result.norm_K <= norm)).sum())
            # Each client adds 1/2 or -1/2, so that one client more or less moves the count by 1/2.
            count = num_unclipped - len(plan.clients) / 2 + scale * count_stddev * source.scalar()
            norm = self.next_clipping_norm(norm, count / cohort_size + 0.5)
        return total / cohort_size, {"clip": torch.tensor(norm, dtype=torch.float64)}

    def noise_split(self) -> tuple[float, float]:
        """Return the noise multiplier of the sum, and the standard deviation of the noise on the clipped count."""
        if not self.target_quantile:
            return self.noise_multiplier, 0.0
        cohort_size = self.accounting.accountant.cohort_size  # a twentieth of it: the first grows by at most 15 %
        stddev = self.clipped_count_stddev or max(cohort_size / 20, self.noise_multiplier)
        return update_noise(self.noise_multiplier, stddev), stddev

    def mean_noise_stddev(self, cohort_size: int) -> float:
        """Return the standard deviation of the noise on each value of a mean update, over the clipping norm."""
        return self.noise_split()[0] / self.accounting.accountant.cohort_size

    def next_clipping_norm(self, norm: float, unclipped_fraction: float) -> float:
        """Return C exp(-clip_learning_rate (b - target_quantile)) (Andrew et al. 2021); b is the noisy fraction."""
        change = -self.clip_learning_rate * (unclipped_fraction - self.target_quantile)
        if not math.log(FLOAT32.tiny) < math.log(norm) + change < math.log(FLOAT32.max):
            fix = "lower privacy.clip_learning_rate or the noise"
            raise DivergenceError(f"the clipping norm has left the range of float32: {fix}")
        return norm * math.exp(change)

    def epsilon_spent(self, rounds: int, privacy_state: PrivacyState) -> float:
        return self.accounting.accountant.epsilon_spent(rounds, self.delta)

    def max_rounds(self, rounds: int) -> int:
        limit = self.epsilon * (1 + 1e-12)  # rounding
        if not self.epsilon or self.epsilon_spent(rounds, {}) <= limit:
            return rounds
        return bisect_right(range(1, rounds), limit, key=lambda round: self.epsilon_spent(round, {}))

    def describe(self) -> str:
        source = "a seed drawn by the operating system and not kept"
        if self.reproducible_noise:
            source = "the run's seed, so it repeats and protects no one from those who know the seed"
        norm = f"{self.clipping_norm:g}"
        clipping = f"clipped at norm {norm}"
        if self.target_quantile:
            clipping = f"clipped near the {self.target_quantile:g} quantile of their norms, starting at {norm}"
        return (
            f"{self.accounting.describe(self.delta)} Updates are {clipping}; the noise multiplier is "
            f"{self.noise_multiplier:.4g} (accountant {self.accountant}); the noise comes from {source}. The sampled "
            "clients follow from the run's seed: the guarantee covers the model, and the seed, log and checkpoints must "
            "stay with the server."
        )


@component("privacy", "local")
class LocalDP:
    """Every client adds Gaussian noise to its own clipped update before it is sent.

    The sum of the clients' noise is drawn at once, which has the same distribution; a client whose update is not
    finite sends noise alone. A user's epsilon grows with each round it takes part in, at sensitivity 2 C: its update
    could have been any other. There is no budget that ends the run.
    """

    noise_multiplier: float = option(1.0, "stddev of a client's own noise over the clipping norm", above=0)
    clipping_norm: float = option(1.0, "bound on the norm of an update", above=0)
    delta: float = option(0.0, DELTA_HELP, minimum=0, below=1)
    reproducible_noise: bool = option(False, REPRODUCIBLE_NOISE_HELP)
    covered = COVERED

    def incompatibility(self, algorithm: Algorithm, population: Population) -> str | None:
        if type(algorithm.sampler) not in SAMPLING:
            name = type(algorithm.sampler).__name__
            return f"privacy=local adds noise after sampler={name} has read what clients hold: set sampler=uniform"
        if algorithm.compressor is not None:
            return "privacy=local adds the clients' noise to the sum, after compression: set compressor=none"
        return _incompatibility("privacy=local", algorithm)

    def calibrate(self, algorithm: Algorithm, population: Population, rounds: int) -> "LocalDP":
        return replace(self, delta=self.delta or auto_delta(len(population.user_ids)))

    def init(self) -> PrivacyState:
        return {"times": torch.zeros(0, dtype=torch.int64)}  # how often each client has taken part, by client id

    def clipping_bound(self, privacy_state: PrivacyState) -> float:
        return self.clipping_norm

    def privatize(
        self, result: CohortResult, plan: RoundPlan, context: RoundContext, privacy_state: PrivacyState, noise_seed: int
    ) -> tuple[Tensor, PrivacyState]:
        """Return the mean of the noisy updates."""
        stddev = self.noise_multiplier * self.clipping_norm * math.sqrt(len(plan.clients))
        noise = GaussianSource(noise_seed).noise_like(result.update_W, stddev, context.personal_mask)
        old_times = privacy_state["times"].numpy()
        client_ids = np.array([client.client_id for client in plan.clients], np.int64)
        times = np.bincount(client_ids, minlength=len(old_times))
        times[: len(old_times)] += old_times
        return (result.update_W + noise) / max(len(plan.clients), 1), {"times": torch.from_numpy(times)}

    def mean_noise_stddev(self, cohort_size: int) -> float:
        """Return the standard deviation of the noise on each value of a mean update, over the clipping norm."""
        return self.noise_multiplier / math.sqrt(cohort_size)

    def epsilon_spent(self, rounds: int, privacy_state: PrivacyState) -> float:
        """Return the epsilon of the user who has taken part most often."""
        max_times = int(privacy_state["times"].max()) if len(privacy_state["times"]) else 0
        return PrivacyAccountant(1, 1, 1, self.noise_multiplier / 2, "none").epsilon_spent(max_times, self.delta)

    def max_rounds(self, rounds: int) -> int:
        return rounds

    def describe(self) -> str:
        return (
            f"Every client adds noise of {self.noise_multiplier:g} times the clipping norm to its own update, clipped at "
            f"norm {self.clipping_norm:g}: local differential privacy with delta {self.delta:.3g}, at the epsilon of the "
            "user who took part most often (neighbors: one user replaced by another)."
        )


def _incompatibility(privacy: str, algorithm: Algorithm) -> str | None:
    """Return why a component would reveal more of a client than its clipped update, or count it more than once."""
    if algorithm.client_weighting != WeightUniformly():
        return f"{privacy} needs uniform client weights: set client_weighting=uniform (in Python: WeightUniformly())"
    if algorithm.correction is not None and algorithm.correction.uploads:
        name = type(algorithm.correction).__name__
        return f"{privacy} protects only the update, and correction={name} uploads more: choose algorithm=fedavg, fedprox or fedadam"
    weighting = algorithm.example_weighting
    if isinstance(weighting, ImportanceReweighting) and (weighting.split or weighting.target == POPULATION):
        reason = "must not read users' labels for the p(y) of example_weighting=importance"
        return f"{privacy} {reason}: set example_weighting.target to uniform or to numbers"
    return None


class GaussianSource:
    """Standard normal numbers from a secret seed, of which Philox uses 128 bits, and 64 bits on a GPU.

    PyTorch's CPU generator uses 32: an attacker who sees a sum could try all seeds and subtract the noise.
    """

    def __init__(self, seed: int) -> None:
        self._host_rng = np.random.Generator(np.random.Philox(key=seed % 2**128))
        self._device_rng = cache(lambda device: torch.Generator(device).manual_seed(seed % 2**64))

    def scalar(self) -> float:
        return float(self._host_rng.standard_normal())

    def sample_like(self, tensor: Tensor) -> Tensor:
        """Return a tensor of the same shape, type and device."""
        if not tensor.is_cuda:
            sample = self._host_rng.standard_normal(tuple(tensor.shape), np.float32)
            return torch.from_numpy(sample).to(tensor.device, tensor.dtype)
        generator = self._device_rng(tensor.device)
        return torch.randn(tensor.shape, generator=generator, device=tensor.device, dtype=tensor.dtype)

    def noise_like(self, tensor: Tensor, stddev: float, personal_mask: Tensor | None) -> Tensor:
        """Return noise for the shared values; personal layers get none."""
        noise = stddev * self.sample_like(tensor)
        return noise if personal_mask is None else noise * ~personal_mask
