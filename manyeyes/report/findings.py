"""The first two sentences of a report: what was compared and what came out, from the numbers of the runs alone."""

from collections.abc import Sequence
from statistics import fmean, stdev

from manyeyes.report.curves import Group, data_caveat, metric_info, metric_label
from manyeyes.report.overview import has_one_dataset, is_ranked, ranked
from manyeyes.report.text import format_mean, format_value
from manyeyes.training.run_names import naming_settings
from manyeyes.training.run_record import RunRecord, format_setting

MAX_LISTED = 4  # names or values in a sentence


def findings(groups: list[Group]) -> str:
    """Return what was compared, on which data, and the best score with what speaks against trusting it."""
    runs = [run for group in groups for run in group.runs]
    return f"{_compared(groups, runs)}. {_outcome(groups, runs)}."


def swept_settings(runs: list[RunRecord]) -> list[str]:
    """Return the settings that distinguish runs, without the seed."""
    return [name for name in naming_settings(runs) if name != "seed"] if len(runs) > 1 else []


def _compared(groups: list[Group], runs: list[RunRecord]) -> str:
    names = [group.name for group in groups]
    if len(runs) == 1:
        text = f"{_algorithm(runs[0])} trained {runs[0].settings.get('model.name') or 'a model'}"
    elif len(groups) == 1:
        text = f"{names[0]} was trained with {_seeds(groups)}"
    elif len(groups) <= MAX_LISTED:
        text = f"Compared: {_listed(names)}, with {_seeds(groups)}"
    else:
        swept = [f"{len(values)} values of {name}" for name, values in swept_values(runs).items()]
        num_more = len(swept) - MAX_LISTED
        swept = [*swept[:MAX_LISTED], f"{num_more} more"] if num_more > 0 else swept
        text = f"Compared: {len(groups)} choices of settings ({_listed(swept)}), with {_seeds(groups)}"
    caveat = data_caveat(runs)
    data = f", on {caveat if caveat == 'synthetic images' else f'data with a caveat: {caveat}'}" if caveat else ""
    unfinished = sum(not run.is_finished for run in runs)
    note = f"; {unfinished} of {len(runs)} runs did not finish" if unfinished and len(runs) > 1 else ""
    return f"{text} for {_rounds(runs)}{data}{note}"


def swept_values(runs: list[RunRecord]) -> dict[str, list[str]]:
    """Return the values that runs have of each swept setting, by its short name and in ascending order."""
    swept = swept_settings(runs)
    columns = {name: list({format_setting(run.settings.get(name)) for run in runs}) for name in swept}
    return {
        name.removesuffix(".name").rpartition(".")[2]: sorted(column, key=sort_key) for name, column in columns.items()
    }


def sort_key(text: str) -> tuple[float, str]:
    """Return a key by which numbers come first, in their order."""
    try:
        return float(text), text
    except ValueError:
        return float("inf"), text


def _outcome(groups: list[Group], runs: list[RunRecord]) -> str:
    scored = [group for group in ranked(groups) if group.scores]
    if len(runs) == 1:
        return _single_outcome(runs[0])
    if not scored:
        return "No run has finished with a score"
    best, metric = scored[0], scored[0].runs[0].metric or ""
    label = metric_label(best.runs, metric)
    score = format_mean(best.scores, metric_info(metric).is_fraction)
    if len(scored) == 1:
        return f"{best.name} ended with {label} {score}{_over(best)}"
    if not has_one_dataset(groups):
        return "The runs are on different data, so no ranking of them is made"
    if not is_ranked(groups):
        return "The runs are scored by different metrics, so no ranking of them is made"
    return f"{best.name} ended with the highest {label}, {score}{_over(best)}, {_lead(best, scored[1])}"


def _lead(best: Group, second: Group) -> str:
    """Return how far the best is ahead, and what speaks against calling it better."""
    is_fraction = metric_info(best.runs[0].metric or "").is_fraction
    difference = fmean(best.scores) - fmean(second.scores)
    amount = f"{100 * difference:.1f} percentage points" if is_fraction else format_value(difference)
    text = f"{amount} above {second.name}"
    if len(best.scores) == 1 or len(second.scores) == 1:
        return f"{text}; with one seed each, chance alone can make such a difference"
    deviation = max(stdev(best.scores), stdev(second.scores))
    if difference <= deviation:
        return f"{text}, which is within one standard deviation over the seeds"
    return text


def _single_outcome(run: RunRecord) -> str:
    metric = run.metric
    if metric is None:
        return f"It has no evaluation of its model ({run.status})"
    value = format_value(run.last(metric), metric_info(metric).is_fraction)
    verb = "ended with" if run.is_finished else f"has not finished ({run.status}), and its last evaluation has"
    split = run.settings.get("eval_split")
    return f"It {verb} {metric_label([run], metric)} {value}{f' on the {split} split' if split else ''}, with one seed"


def _over(group: Group) -> str:
    return f" (mean and standard deviation over {len(group.scores)} seeds)" if len(group.scores) > 1 else ""


def _seeds(groups: list[Group]) -> str:
    counts = {len(group.runs) for group in groups}
    low, high = min(counts), max(counts)
    each = " each" if len(groups) > 1 else ""
    return f"one seed{each}" if high == 1 else f"{high} seeds{each}" if low == high else f"{low} to {high} seeds{each}"


def _rounds(runs: list[RunRecord]) -> str:
    counts = sorted({run.rounds for run in runs})
    text = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    return f"{text} round{'' if counts == [1] else 's'}"


def _algorithm(run: RunRecord) -> str:
    return str(run.settings.get("algorithm.name") or run.name)


def _listed(items: Sequence[str]) -> str:
    return f"{', '.join(items[:-1])} and {items[-1]}" if len(items) > 1 else "".join(items)
