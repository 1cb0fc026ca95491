"""`manyeyes privacy plan`: the noise of a guarantee, and how it changes with the cohort and the number of rounds."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from manyeyes.core.registry import Bounds, check_value
from manyeyes.privacy.accountant import PrivacyAccountant
from manyeyes.privacy.calibration import PrivacyGuarantee, Simulation, min_noise_multiplier
from manyeyes.report.chart import Axis, Chart, Series
from manyeyes.report.export import write_page_folder
from manyeyes.report.page import ChartGrid, Section
from manyeyes.report.table import Table

NUM_EPSILON_POINTS = 50  # of the curve over rounds
METHOD_LABELS = {"rdp": "Renyi (moments)", "pld": "privacy loss distributions"}
PLAN_COLOR, CURVE_COLOR = 1, 0  # indices into the palette
COHORT_RANGE, ROUND_RANGE = (1 / 50, 10), (1 / 50, 2)  # of the tables, over the planned number


@dataclass(frozen=True, eq=False)
class PrivacyPlan:
    """A guarantee, its effect on the mean update, and the noise of the same guarantee with other cohorts."""

    guarantee: PrivacyGuarantee
    simulation: Simulation
    clipping_norm: float
    num_parameters: int | None
    noise_multipliers: dict[int, float]  # by cohort size

    @property
    def accountant(self) -> PrivacyAccountant:
        return self.guarantee.accountant

    def mean_stddev(self, cohort_size: int) -> float:
        """Return the standard deviation of the noise on each value of the mean update."""
        return self.noise_multipliers[cohort_size] * self.clipping_norm / cohort_size

    def signal_to_noise(self, cohort_size: int) -> float:
        """Return the clipping norm, which bounds the norm of the mean update, over the norm of the noise on it."""
        assert self.num_parameters is not None, "signal to noise needs the number of parameters"
        return self.clipping_norm / (math.sqrt(self.num_parameters) * self.mean_stddev(cohort_size))


def plan(
    guarantee: PrivacyGuarantee, cohort_size: int, clipping_norm: float = 1.0, num_parameters: int | None = None
) -> PrivacyPlan:
    """Return the plan of a guarantee; `cohort_size` users train per round, with the noise of the accountant's cohort."""
    accountant = guarantee.accountant
    simulation = Simulation(accountant, cohort_size)
    check_value("clipping_norm", clipping_norm, float, Bounds(above=0))
    if num_parameters is not None:
        check_value("num_parameters", num_parameters, int, Bounds(minimum=1))
    noise_multipliers = {accountant.cohort_size: accountant.noise_multiplier}
    for size in _round_numbers(accountant.cohort_size, *COHORT_RANGE):
        if accountant.sampling != "none" and size <= accountant.num_users and size not in noise_multipliers:
            alternative = replace(accountant, cohort_size=size)
            noise_multipliers[size] = min_noise_multiplier(alternative, guarantee.epsilon, guarantee.delta)
    noise_multipliers = dict(sorted(noise_multipliers.items()))
    return PrivacyPlan(guarantee, simulation, clipping_norm, num_parameters, noise_multipliers)


def show(plan: PrivacyPlan, out: Path) -> str:
    """Write the page and its charts into the folder `out`, and return the plan for a terminal."""
    lead, overview = plan.simulation.describe(plan.guarantee.delta), _overview(plan)
    tables = [_rounds_table(plan), *([_cohorts_table(plan)] if len(plan.noise_multipliers) > 1 else [])]
    others = Section("Other cohorts and rounds", [ChartGrid(_charts(plan)), *tables])
    write_page_folder(out, "Privacy plan", lead, [Section("Overview", [overview]), others])
    texts = (table.terminal() for table in (overview, *tables))
    return "\n".join([lead, *texts, f"charts and page: {out / 'index.html'}"])


def _charts(plan: PrivacyPlan) -> list[Chart]:
    """Return the noise over cohort sizes, epsilon over rounds, and the signal to noise over cohort sizes."""
    guarantee, accountant, size = plan.guarantee, plan.accountant, plan.accountant.cohort_size
    noise, users = f"noise multiplier of {accountant.noise_multiplier:.3g}", Axis("users per round", log=True)
    fractions = np.linspace(0, 1, NUM_EPSILON_POINTS) ** 2  # epsilon rises fast at first
    rounds = np.unique((accountant.rounds * fractions).round().astype(int)).tolist()
    epsilons = {number: accountant.epsilon_spent(number, guarantee.delta) for number in rounds}
    title = f"With a {noise}, {accountant.rounds:,} rounds spend epsilon {epsilons[accountant.rounds]:.3g}"
    caption = "Epsilon at the same delta, if training stops after this number of rounds."
    x, y = Axis("rounds", low=0), Axis("epsilon spent", low=0)
    charts = [Chart("epsilon", title, x, y, _curve(epsilons, accountant.rounds), caption)]
    if len(plan.noise_multipliers) == 1:
        return charts
    title = f"{size:,} users per round need a {noise} for epsilon {guarantee.epsilon:.3g}"
    caption = (
        "The smallest noise multiplier that keeps epsilon, delta and the number of rounds. Divided by the users per "
        "round, it is the noise on their mean."
    )
    y = Axis("noise multiplier", log=True)
    charts.insert(0, Chart("noise", title, users, y, _curve(plan.noise_multipliers, size), caption))
    if plan.num_parameters is not None:
        signals = {cohort_size: plan.signal_to_noise(cohort_size) for cohort_size in plan.noise_multipliers}
        title = f"With {size:,} users per round, signal to noise is at most {signals[size]:.2g}"
        caption = (
            "The largest norm of a mean of clipped updates, over the norm of the noise on its "
            f"{plan.num_parameters:,} values; each cohort with the noise that its guarantee needs."
        )
        charts.append(Chart("signal", title, users, Axis("signal to noise", low=0), _curve(signals, size), caption))
    return charts


def _curve(values: dict[int, float], planned: int) -> list[Series]:
    point = Series("the plan", [planned], [values[planned]], kind="points", color=PLAN_COLOR)
    return [Series("alternatives", list(values), list(values.values()), color=CURVE_COLOR), point]


def _overview(plan: PrivacyPlan) -> Table:
    guarantee, accountant, simulation = plan.guarantee, plan.accountant, plan.simulation
    mean_stddev = plan.mean_stddev(accountant.cohort_size)
    sampling = {
        "poisson": f"each with probability {accountant.probability:.4g}",
        "fixed": "drawn uniformly, without replacement",
        "none": "all users",
    }[accountant.sampling]
    rows = {
        "users": f"{accountant.num_users:,}",
        "users per round": f"{accountant.cohort_size:,}, {sampling}",
        "rounds": f"{accountant.rounds:,}",
        "neighbors": accountant.adjacency,
        "accountant": METHOD_LABELS[accountant.method],
        "epsilon": f"{guarantee.epsilon:.4g}",
        "delta": f"{guarantee.delta:.3g}",
        "noise_multiplier": f"{accountant.noise_multiplier:.4g} clipping norms on the sum",
        "noise on the mean": f"{mean_stddev:.3g} per value, at clipping norm {plan.clipping_norm:g}",
    }
    if simulation.cohort_size != accountant.cohort_size:
        noise = f"{simulation.noise_multiplier:.4g} clipping norms on their sum"
        rows["simulated with"] = f"{simulation.cohort_size:,} users per round, {noise}"
    if plan.num_parameters is not None:
        signal = plan.signal_to_noise(accountant.cohort_size)
        rows["signal to noise"] = f"at most {signal:.3g}, over {plan.num_parameters:,} parameters"
    labels = {guarantee.solved: f"{guarantee.solved} (computed)"}
    return Table("The plan", ["", ""], [[labels.get(name, name).replace("_", " "), rows[name]] for name in rows])


def _rounds_table(plan: PrivacyPlan) -> Table:
    accountant, delta = plan.accountant, plan.guarantee.delta
    header = ["rounds", f"epsilon at noise multiplier {accountant.noise_multiplier:.4g}"]
    rounds = _round_numbers(accountant.rounds, *ROUND_RANGE)
    rows = [[f"{number:,}", f"{accountant.epsilon_spent(number, delta):.3g}"] for number in rounds]
    return Table("Over rounds", header, rows)


def _cohorts_table(plan: PrivacyPlan) -> Table:
    accountant, guarantee = plan.accountant, plan.guarantee
    columns = {
        "users per round": lambda size: f"{size:,}",
        f"epsilon at noise multiplier {accountant.noise_multiplier:.4g}": lambda size: (
            f"{replace(accountant, cohort_size=size).epsilon(guarantee.delta):.3g}"
        ),
        f"noise multiplier for epsilon {guarantee.epsilon:.4g}": lambda size: f"{plan.noise_multipliers[size]:.4g}",
        "noise on the mean": lambda size: f"{plan.mean_stddev(size):.3g}",
    }
    if plan.num_parameters is not None:
        columns["signal to noise"] = lambda size: f"{plan.signal_to_noise(size):.3g}"
    rows = [[cell(size) for cell in columns.values()] for size in plan.noise_multipliers]
    return Table(f"Over cohort sizes, at {accountant.rounds:,} rounds", list(columns), rows)


def _round_numbers(number: int, low: float, high: float) -> list[int]:
    """Return a number, and those of 1, 2, 5, 10, 20, ... between two multiples of it."""
    candidates = (factor * 10**power for power in range(13) for factor in (1, 2, 5))
    return sorted({number, *(n for n in candidates if low * number <= n <= high * number)})
