"""`manyeyes privacy plan`: what a promise costs in noise, and what other cohorts and rounds would make of it."""

import io
import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table as TerminalTable

from manyeyes.core.registry import Bounds, check_value
from manyeyes.io.files import write_bytes, write_text
from manyeyes.privacy.accountant import EpsilonCurve, PrivacyAccountant
from manyeyes.privacy.calibration import PrivacyGuarantee, Simulation, min_noise_multiplier
from manyeyes.report import privacy_figures as figures
from manyeyes.report.figures import CaptionedFigure, Charts, render
from manyeyes.report.page import Image, Section, page
from manyeyes.report.table import Table

POINTS = 50  # of the line of epsilon over rounds
CALLED = {"rdp": "Renyi (moments)", "pld": "privacy loss distributions"}


@dataclass(frozen=True, eq=False)
class PrivacyPlan:
    """A promise, what it does to the mean update, and the same promise kept by other cohorts."""

    promise: PrivacyGuarantee
    simulation: Simulation
    clip: float
    parameters: int | None
    noise: dict[int, float]  # that keeps the promise, by cohort

    def mean_std(self, cohort: int) -> float:
        """Standard deviation of the noise on each number of the mean."""
        return self.noise[cohort] * self.clip / cohort

    def signal(self, cohort: int) -> float:
        """Clip, which the mean update cannot exceed in length, against the length of the noise on it."""
        assert self.parameters is not None
        return self.clip / (math.sqrt(self.parameters) * self.mean_std(cohort))


def plan(promise: PrivacyGuarantee, cohort: int, clip: float = 1.0, parameters: int | None = None) -> PrivacyPlan:
    """The outlook of a promise; `cohort` users train a round, with the noise of the account's, if that is more."""
    simulation = Simulation(promise.accountant, cohort)
    check_value("clip", clip, float, Bounds(above=0))
    if parameters is not None:
        check_value("parameters", parameters, int, Bounds(minimum=1))
    account, chosen = promise.accountant, promise.accountant.cohort_size
    noise = {
        k: account.noise_multiplier
        if k == chosen
        else min_noise_multiplier(replace(account, cohort_size=k), promise.epsilon, promise.delta)
        for k in _cohorts(account)
    }
    return PrivacyPlan(promise, simulation, clip, parameters, noise)


def show(found: PrivacyPlan, out: Path) -> str:
    """Write the pictures and `index.html` into the folder `out`; the text is for the terminal."""
    out.mkdir(parents=True, exist_ok=True)
    charts = []
    for stem, drawing in _drawings(found).items():
        svg, png = (render(drawing.figure, kind) for kind in ("svg", "png"))
        write_bytes(out / f"{stem}.svg", svg)
        write_bytes(out / f"{stem}.png", png)
        charts.append((Image(svg, "svg+xml", f"Chart: {drawing.title}."), drawing.caption))
    lead = found.simulation.describe(found.promise.delta)
    tables = [_glance(found), _rounds(found), *([_cohorts_table(found)] if len(found.noise) > 1 else [])]
    sections = [
        Section("At a glance", [tables[0]]),
        Section("Other cohorts and rounds", [Charts(charts), *tables[1:]]),
    ]
    write_text(out / "index.html", page("A privacy plan", lead, sections))
    return "\n".join([lead, *map(_printed, tables), f"pictures and page: {out / 'index.html'}"])


def _drawings(found: PrivacyPlan) -> dict[str, CaptionedFigure]:
    """The figures by the names of their files."""
    promise, account, drawings = found.promise, found.promise.accountant, {}
    cohorts = list(found.noise)
    if len(cohorts) > 1:
        drawings["noise"] = figures.draw_noise(
            cohorts, list(found.noise.values()), account.cohort_size, account.noise_multiplier, promise.epsilon
        )
    ledger, spread = EpsilonCurve(account, promise.delta), np.linspace(0, 1, POINTS) ** 2  # epsilon rises fast at first
    rounds = np.unique((account.rounds * spread).round().astype(int)).tolist()
    spent = [ledger.epsilon_spent(r) for r in rounds]
    drawings["epsilon"] = figures.draw_epsilon(rounds, spent, account.rounds, spent[-1], account.noise_multiplier)
    if len(cohorts) > 1 and found.parameters is not None:
        signal = [found.signal(k) for k in cohorts]
        drawings["signal"] = figures.draw_signal(
            cohorts, signal, account.cohort_size, found.signal(account.cohort_size), found.parameters
        )
    return drawings


def _glance(found: PrivacyPlan) -> Table:
    promise, account, simulation = found.promise, found.promise.accountant, found.simulation
    chosen = {
        "poisson": f"each with probability {account.probability:.4g}",
        "fixed": "drawn uniformly, none twice",
        "none": "everyone",
    }[account.sampling]
    rows = {
        "users": f"{account.num_users:,}",
        "users a round": f"{account.cohort_size:,}, {chosen}",
        "rounds": f"{account.rounds:,}",
        "neighbours": account.adjacency,
        "accountant": CALLED[account.method],
        "epsilon": f"{promise.epsilon:.4g}",
        "delta": f"{promise.delta:.3g}",
        "noise": f"{account.noise_multiplier:.4g} clips on the sum",
        "noise on the mean": f"{found.mean_std(account.cohort_size):.3g} a number, at clip {found.clip:g}",
    }
    if simulation.cohort_size != account.cohort_size:
        rows["simulated with"] = (
            f"{simulation.cohort_size:,} users a round, {simulation.noise_multiplier:.4g} clips on their sum"
        )
    if found.parameters is not None:
        rows["signal to noise"] = f"at most {found.signal(account.cohort_size):.3g}, over {found.parameters:,} numbers"
    solved = {"noise_multiplier": "noise"}.get(promise.solved, promise.solved)
    label = {solved: f"{solved} (computed)"}
    return Table("The plan", ["", ""], [[label.get(name, name), value] for name, value in rows.items()])


def _rounds(found: PrivacyPlan) -> Table:
    account = found.promise.accountant
    ledger = EpsilonCurve(account, found.promise.delta)
    rounds = sorted({*_series(account.rounds / 50, account.rounds * 2), account.rounds})
    return Table(
        "Over rounds",
        ["rounds", f"epsilon at noise {account.noise_multiplier:.4g}"],
        [[f"{r:,}", f"{ledger.epsilon_spent(r):.3g}"] for r in rounds],
    )


def _cohorts_table(found: PrivacyPlan) -> Table:
    account, delta = found.promise.accountant, found.promise.delta
    head = [
        "users a round",
        f"epsilon at noise {account.noise_multiplier:.4g}",
        f"noise for epsilon {found.promise.epsilon:.4g}",
        "on the mean",
        *(["signal to noise"] if found.parameters is not None else []),
    ]
    rows = [
        [
            f"{k:,}",
            f"{replace(account, cohort_size=k).epsilon(delta):.3g}",
            f"{noise:.4g}",
            f"{found.mean_std(k):.3g}",
            *([f"{found.signal(k):.3g}"] if found.parameters is not None else []),
        ]
        for k, noise in found.noise.items()
    ]
    return Table(f"Over cohort sizes, at {account.rounds:,} rounds", head, rows)


def _cohorts(account: PrivacyAccountant) -> list[int]:
    """Round numbers about the account's own; without sampling there is no other."""
    if account.sampling == "none":
        return [account.cohort_size]
    return sorted(
        {*_series(account.cohort_size / 50, min(account.num_users, account.cohort_size * 10)), account.cohort_size}
    )


def _series(low: float, high: float) -> list[int]:
    """1, 2, 5, 10, 20, ... between two numbers."""
    return [n for power in range(13) for n in (10**power, 2 * 10**power, 5 * 10**power) if low <= n <= high]


def _printed(table: Table) -> str:
    lines = TerminalTable(*table.header, title=table.caption, title_justify="left", show_header=any(table.header))
    for column in lines.columns:
        column.justify = "right" if any(table.header) else "left"
    for row in table.rows:
        lines.add_row(*row)
    console = Console(file=io.StringIO(), width=100, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(lines, markup=False)
    return captured.get().rstrip("\n")
