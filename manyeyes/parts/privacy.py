"""Privacy of users: bounded updates, noise on their sum, and the budget that both spend."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from manyeyes.algorithm import Algorithm, Diverged
from manyeyes.parts.accounting import Account, Ledger, check_delta, update_noise
from manyeyes.parts.calibration import Simulation, auto_delta, least_noise
from manyeyes.parts.cohort import Everyone, Poisson, Uniform
from manyeyes.parts.compression import BF16, Int8, TopK
from manyeyes.parts.noise import Normals
from manyeyes.parts.require import at_least, count, fraction, positive
from manyeyes.parts.reweighing import ImportanceRatio
from manyeyes.parts.weighing import Equally
from manyeyes.population import Population
from manyeyes.work import Aggregate, Plan, Work

Kept = dict[str, Tensor]
FLOAT = torch.finfo(torch.float32)
SAMPLING = {Poisson: "poisson", Uniform: "fixed", Everyone: "none"}
COVERED: dict[str, tuple[type, ...]] = {
    "cohort": tuple(SAMPLING),
    "weigh": (Equally,),
    "reweigh": (ImportanceRatio,),
}


@dataclass(frozen=True)
class Clip:
    """No update is longer than this."""

    length: float = 1.0

    def __post_init__(self) -> None:
        positive("clip", self.length)

    def noises(self, noise: float, cohort: int) -> tuple[float, float]:
        """Of a noise multiplier that is spent on `cohort` clients: that of their sum, and the count's deviation."""
        return noise, 0.0


@dataclass(frozen=True)
class AdaptiveClip:
    """A length that follows a quantile of the updates' own: C <- C exp(-rate (b - quantile)) (Andrew et al. 2021).

    b, the share of clients within C, is noisy too, and pays with a part of the noise multiplier.
    """

    length: float = 0.1  # in the first round
    quantile: float = 0.5
    rate: float = 0.2
    count_std: float = 0.0  # deviation of the noise on how many are within; 0: a twentieth of the cohort, or z if more

    def __post_init__(self) -> None:
        positive("clip", self.length)
        positive("quantile", self.quantile)  # a clip that follows the least length goes to 0
        fraction("quantile", self.quantile)
        positive("clip rate", self.rate)
        at_least("count_std", self.count_std, 0)

    def noises(self, noise: float, cohort: int) -> tuple[float, float]:
        std = self.count_std or max(cohort / 20, noise)  # at z, the update's own noise grows by 15 %
        return update_noise(noise, std), std

    def follow(self, clip: float, share: float) -> float:
        change = -self.rate * (share - self.quantile)
        if not math.log(FLOAT.tiny) < math.log(clip) + change < math.log(FLOAT.max):
            raise Diverged("the clip has left the numbers of a float32 (lower the clip rate or the noise)")
        return clip * math.exp(change)


@dataclass(frozen=True)
class CentralDP:
    """The server adds Gaussian noise to the sum of clipped updates: (epsilon, delta) for every user over all rounds.

    `noise_cohort` is FLAIR's way to study large cohorts (section 5.1): the mean of a small one carries the noise that
    the mean of so many clients would, and the epsilon is theirs.
    """

    epsilon: float = 2.0  # the budget: no round is played that would exceed it; 0: none
    noise: float = 0.0  # deviation on the sum, in clips; 0: the least that keeps within epsilon
    delta: float = 0.0  # 0: users^-1.1
    clip: Clip | AdaptiveClip = Clip()
    noise_cohort: int = 0  # 0: the clients that train
    accountant: str = "rdp"
    reproducible_noise: bool = False  # noise from the run's seed, which whoever knows it can take off again
    # What is accounted, once a run knows its users and rounds; of two runs with the same noise one may be longer.
    simulation: Simulation | None = field(default=None, repr=False)
    covered = COVERED | {"compress": (BF16, Int8, TopK)}

    def __post_init__(self) -> None:
        for name, value in (("epsilon", self.epsilon), ("noise", self.noise)):
            at_least(name, value, 0)
        if self.delta:
            check_delta(self.delta)
        count("noise_cohort", self.noise_cohort, 0)
        if not self.epsilon and not self.noise:
            raise ValueError("private training needs a budget or a noise: set epsilon, noise or both")

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        if type(algorithm.cohort) not in SAMPLING:
            return f"no account is known for clients drawn as by {type(algorithm.cohort).__name__}: select poisson"
        users = len(population.users)
        if self.noise_cohort > users:
            return f"noise_cohort is {self.noise_cohort}: there are {users} users, and it can be no more than they are"
        if self.noise_cohort and isinstance(algorithm.cohort, Everyone):
            return "noise_cohort stands for more clients a round than train, and everyone does: set it to 0"
        return _refuse(algorithm)

    def settled(self, algorithm: Algorithm, population: Population, rounds: int) -> CentralDP:
        """With the noise that the budget wants of a run of so many rounds."""
        users = len(population.users)
        cohort = algorithm.cohort.clients if isinstance(algorithm.cohort, Poisson | Uniform) else users
        delta = self.delta or auto_delta(users)
        large = self.noise_cohort or cohort
        account = Account(users, large, rounds, self.noise or 1.0, SAMPLING[type(algorithm.cohort)], self.accountant)
        noise = self.noise or least_noise(account, self.epsilon, delta)
        self.clip.noises(noise, large)  # which refuses a count too noisy or not noisy enough, before round 1
        return replace(self, noise=noise, delta=delta, simulation=Simulation(replace(account, noise=noise), cohort))

    @property
    def terms(self) -> Simulation:
        assert self.simulation is not None, "train() settles what is private; call `settled` first"
        return self.simulation

    def start(self) -> Kept:
        return {"clip": torch.tensor(self.clip.length, dtype=torch.float64)}

    def bound(self, kept: Kept) -> float:
        return float(kept["clip"])

    def protect(self, result: Aggregate, plan: Plan, work: Work, kept: Kept, secret: int) -> tuple[Tensor, Kept]:
        """The noisy mean of the updates, over as many clients as are expected, and the next clip."""
        normals, cohort, clip = Normals(secret), self.terms.cohort, self.bound(kept)
        scale = cohort / self.terms.account.cohort
        noise, count_std = self.clip.noises(self.noise, self.terms.account.cohort)
        total = result.update_W + gaussian(result.update_W, scale * noise * clip, work.personal, normals)
        if isinstance(self.clip, AdaptiveClip):
            within = float((result.kept_K & (result.norm_K <= clip)).sum())
            # Each client adds 1/2 or -1/2, so that one more or less moves the count by no more than that.
            share = (within - len(plan.clients) / 2 + scale * count_std * normals.one()) / cohort + 0.5
            clip = self.clip.follow(clip, share)
        return total / cohort, {"clip": torch.tensor(clip, dtype=torch.float64)}

    def spent(self, rounds: int, kept: Kept) -> float:
        """Epsilon after so many rounds."""
        return Ledger(self.terms.account, self.delta).spent(rounds)

    def affordable(self, rounds: int) -> int:
        """How many of so many rounds the budget allows."""
        if not self.epsilon:
            return rounds
        low, high = 0, rounds + 1  # the most that is known to be within, the least that is known to be beyond
        while high - low > 1:
            middle = (low + high) // 2 if high <= rounds else rounds
            if self.spent(middle, {}) <= self.epsilon * (1 + 1e-12):  # rounding
                low = middle
            else:
                high = middle
        return low

    def words(self) -> str:
        """For a report."""
        source = "the run's seed: it repeats, and protects nobody from those who know the seed"
        if not self.reproducible_noise:
            source = "a seed that the operating system drew and nobody kept"
        clip = f"clipped at {self.clip.length:g}"
        if isinstance(self.clip, AdaptiveClip):
            clip = f"clipped near the {self.clip.quantile:g} quantile of their lengths, from {self.clip.length:g} on"
        return (
            f"{self.terms.words(self.delta)} Updates are {clip}; the noise multiplier is {self.noise:.4g} "
            f"(accountant {self.accountant}); the noise comes from {source}. Who took part in which round follows from "
            "the run's seed: seed, log and checkpoints are the server's own, and only the model is promised about."
        )


@dataclass(frozen=True)
class LocalDP:
    """Every client adds Gaussian noise to its own clipped update, and trusts nobody.

    The sum of the clients' noises is drawn at once, which has the same distribution; one whose update is not finite
    sends noise alone. A user's epsilon grows with each round it takes part in, at sensitivity 2 C: its update could
    have been any other. There is no budget to stop at.
    """

    noise: float = 1.0  # deviation of a client's own noise, in clips
    clip: float = 1.0
    delta: float = 0.0  # 0: users^-1.1
    reproducible_noise: bool = False
    covered = COVERED

    def __post_init__(self) -> None:
        positive("noise", self.noise)
        positive("clip", self.clip)
        if self.delta:
            check_delta(self.delta)

    def refuse(self, algorithm: Algorithm, population: Population) -> str | None:
        if type(algorithm.cohort) not in SAMPLING:
            return f"{type(algorithm.cohort).__name__} looks at what clients hold before they add noise: select uniform"
        if algorithm.compress is not None:
            return "clients would pack their own noise too, which is added to the sum here: leave out compress"
        return _refuse(algorithm)

    def settled(self, algorithm: Algorithm, population: Population, rounds: int) -> LocalDP:
        return replace(self, delta=self.delta or auto_delta(len(population.users)))

    def start(self) -> Kept:
        return {"times": torch.zeros(0, dtype=torch.int64)}  # how often each user has taken part, by its number

    def bound(self, kept: Kept) -> float:
        return self.clip

    def protect(self, result: Aggregate, plan: Plan, work: Work, kept: Kept, secret: int) -> tuple[Tensor, Kept]:
        """The mean of the noisy updates."""
        std = self.noise * self.clip * math.sqrt(len(plan.clients))
        total = result.update_W + gaussian(result.update_W, std, work.personal, Normals(secret))
        keys = np.array([client.key for client in plan.clients], np.int64)
        times = np.zeros(max(len(kept["times"]), keys.max(initial=-1) + 1), np.int64)
        times[: len(kept["times"])] = kept["times"].numpy()
        np.add.at(times, keys, 1)
        return total / max(len(plan.clients), 1), {"times": torch.from_numpy(times)}

    def spent(self, rounds: int, kept: Kept) -> float:
        """Epsilon of the user who has taken part most often."""
        most = int(kept["times"].max()) if len(kept["times"]) else 0
        return Ledger(Account(1, 1, 1, self.noise / 2, "none"), self.delta).spent(most)

    def affordable(self, rounds: int) -> int:
        return rounds

    def words(self) -> str:
        return (
            f"Every client adds noise of {self.noise:g} clips to its own update, clipped at {self.clip:g}: local "
            f"differential privacy with delta {self.delta:.3g}, at the epsilon of whoever took part most often "
            "(neighbours: one user replaced by another)."
        )


def gaussian(like: Tensor, std: float, personal: Tensor | None, normals: Normals) -> Tensor:
    """Noise for what is sent; what stays with the clients gets none."""
    noise = std * normals.like(like)
    return noise if personal is None else noise * ~personal


def _refuse(algorithm: Algorithm) -> str | None:
    """What would tell more of a client than its bounded update, or let it count for more than one."""
    if algorithm.weigh != Equally():
        return "private sums count every client alike: set weigh to equally"
    if algorithm.correct is not None and algorithm.correct.reports:
        return f"{type(algorithm.correct).__name__} has clients report more than their update: it cannot be private"
    if isinstance(algorithm.reweigh, ImportanceRatio) and algorithm.reweigh.target is None:
        return "FedIR would read p(y) off all users: give the target distribution"
    return None
