"""What the papers leave open: the settings of each answer, and how a run with another answer is named.

The first answer to a question is that of the recipes. Runs with other answers have names, and so folders, of their own.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from manyeyes.papers.exhibit import Exhibit, ExhibitRow, RunRecipe


@dataclass(frozen=True)
class OpenChoice:
    """A question about some runs that their paper does not answer; an option of `manyeyes reproduce` has its name."""

    name: str
    question: str
    concerns: frozenset[str]  # settings of the runs in question
    answers: Mapping[str, str]  # settings of each answer, separated by spaces

    @property
    def default(self) -> str:
        return next(iter(self.answers))

    @property
    def help(self) -> str:
        return f"{self.question}: {' or '.join(self.answers)}"

    def is_asked(self, run: RunRecipe) -> bool:
        return self.concerns <= set(run.settings)

    def describe(self, answer: str) -> str:
        """Return what the paper leaves open, and the answer with its settings."""
        return f"The paper does not say {self.question}: {self.name}={answer} here ({self.answers[answer]})."


FEDIR_TARGET = OpenChoice(
    "fedir_target",
    "what FedIR's target p(y) is",
    frozenset({"example_weighting=importance"}),
    {target: f"example_weighting.target={target}" for target in ("uniform", "population")},
)
FEDVC_REPLACEMENT = OpenChoice(
    "fedvc_replacement",
    "whether a FedVC cohort is drawn with replacement",
    frozenset({"algorithm=fedvc"}),
    {answer: f"algorithm.replacement={answer}" for answer in ("false", "true")},
)
CIFAR_SCHEDULE = OpenChoice(
    "cifar_schedule",
    "which learning rates the centralized training on CIFAR has",
    frozenset({"algorithm=centralized", "model=lenet"}),
    {
        "cosine": "algorithm.lr=0.02 algorithm.schedule.kind=cosine",
        "constant": "algorithm.lr=0.01 algorithm.schedule.kind=constant",
    },
)
CHOICES = (FEDIR_TARGET, FEDVC_REPLACEMENT, CIFAR_SCHEDULE)
Answers = Mapping[str, str]  # by the names of the choices


def with_answers(exhibit: Exhibit, answers: Answers) -> Exhibit:
    """Return the exhibit with the runs that these answers give."""

    def answered(row: ExhibitRow) -> ExhibitRow:
        baseline = row.centralized_baseline and _with_answers(row.centralized_baseline, answers)
        runs = tuple(_with_answers(run, answers) for run in row.runs)
        return replace(row, runs=runs, centralized_baseline=baseline)

    return replace(exhibit, rows=tuple(map(answered, exhibit.rows)))


def open_choices(runs: Iterable[RunRecipe], choices: Iterable[OpenChoice] = CHOICES) -> list[OpenChoice]:
    """Return the choices that concern any of the runs."""
    runs = list(runs)
    return [choice for choice in choices if any(map(choice.is_asked, runs))]


def _with_answers(run: RunRecipe, answers: Answers) -> RunRecipe:
    for choice in open_choices([run]):
        if (answer := answers[choice.name]) != choice.default:
            replaced = {setting.partition("=")[0] for setting in choice.answers[choice.default].split()}
            kept = (setting for setting in run.settings if setting.partition("=")[0] not in replaced)
            settings = (*kept, *choice.answers[answer].split())
            run = replace(run, name=f"{run.name}-{choice.name}_{answer}", settings=settings)
    return run
