"""Every fault at every operation of a workload, and what the next start makes of what is left."""

from __future__ import annotations

import errno
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.file_layer import FAULTS, Fault, FaultKind, file_layer, read_tree, write_tree
from tests.faults.power_loss import CHOICES, KILLED, Choice, Disk, Event, Node, contents, random_choice
from tests.faults.workloads import WORKLOADS, Outcome, Workload, start

NUM_RANDOM_LOSSES = 4  # of each operation
SAME, SAID, NAMED = "the same bytes", "said what is lost", "named and refused"


@dataclass
class Tally:
    """What happened after the faults of one kind: counts, and each fault that was not survived."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, case: str, ending: str) -> None:
        """Count how a case ended: a known ending, or the description of a failure."""
        if ending in (SAME, SAID, NAMED):
            self.counts[ending] += 1
        else:
            self.failures.append(f"{case}: {ending}")


class Campaign:
    """One workload in one folder, with the results of an undisturbed run."""

    def __init__(self, name: str, root: Path) -> None:
        self.workload: Workload = WORKLOADS[name]
        self.root = root
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        self.workload.prepare(root)
        self._before = read_tree(str(root))
        with file_layer(root) as layer:
            outcome = start(self.workload.command(root))
        assert (outcome.code, outcome.err) == (0, ""), outcome.err
        self.expected = self.workload.result(root)
        self.operations, self.events, self._disk = layer.operations, layer.events, layer.disk
        assert contents(layer.tree) == contents(read_tree(str(root))), "the layer has not seen all operations"
        self._endings: dict[int, str] = {}

    def cases(self, kind: FaultKind) -> list[int]:
        """Return the numbers of the operations that a fault of this kind can fail."""
        return [number for number, (name, _) in enumerate(self.operations) if name in kind.operations]

    def fail(self, kind: FaultKind, number: int) -> str:
        """Let an operation fail, start again without a fault, and return how it ended."""
        self._restore(self._before)
        with file_layer(self.root, Fault(kind, number)) as layer:
            outcome = start(self.workload.command(self.root))
        assert len(layer.operations) > number, "the operation was not reached"
        if outcome.code == 0:
            result = self.workload.result(self.root)
            if result == self.expected:
                return SAME
            if result | {"names": self.expected.get("names")} == self.expected:
                return self._next_start()  # which removes what was left over
            return f"is silent and differs: {outcome.err}"
        if problem := self._problem(outcome, kind):
            return problem
        return self._next_start()

    def lose_power(self, choice: Choice, disk: Disk) -> str:
        """Leave what a power loss leaves, start again, and return how it ended."""
        tree = disk.after_power_loss(choice)
        key = hash(tuple(contents(tree).items()))
        if key not in self._endings:
            self._restore(tree)
            self._endings[key] = self._next_start()
        return self._endings[key]

    def disks(self) -> Iterator[tuple[int, str, Disk]]:
        """Yield the disk before the first event and after each event, which is the same object."""
        disk = self._disk
        yield 0, "the start", disk
        for number, event in enumerate(self.events, 1):
            disk.add(event)
            yield number, describe(event), disk

    def _next_start(self) -> str:
        outcome = start(self.workload.next_command(self.root))
        if outcome.code is None or "Traceback" in outcome.err:
            return f"the next start raised: {outcome.err}"
        if outcome.code == 0:
            is_same = self.workload.result(self.root) == self.expected
            return SAME if is_same else f"differs after the next start: {outcome.err or 'silently'}"
        if not self._is_sentence(outcome):
            return f"the next start failed without a sentence: {outcome.err}"
        return SAME if self._is_complete() else SAID

    def _is_complete(self) -> bool:
        """Return whether the result is there already, which a command that starts again refuses to replace."""
        try:
            return self.workload.result(self.root) == self.expected
        except FileNotFoundError:
            return False

    def _problem(self, outcome: Outcome, kind: FaultKind) -> str:
        """Return what is wrong with the message of a command that failed; empty if nothing is."""
        if outcome.code is None or "Traceback" in outcome.err:
            return f"raised: {outcome.err}"
        if not self._is_sentence(outcome):
            return f"failed without a sentence that names a file: {outcome.err}"
        saved = self.workload.says_what_is_saved(self.root)
        if (
            kind.error == errno.ENOSPC
            and "annot allocate memory" not in outcome.err
            and not re.search(saved, outcome.err)
        ):
            return f"did not say what is saved: {outcome.err}"
        return ""

    def _is_sentence(self, outcome: Outcome) -> bool:
        return bool(re.fullmatch(r"manyeyes: [^\n]+\n", outcome.err)) and str(self.root) in outcome.err

    def _restore(self, tree: Node) -> None:
        shutil.rmtree(self.root)
        self.root.mkdir()
        write_tree(tree, self.root)


def describe(event: Event) -> str:
    name = event.entry[1] if event.entry else ""
    return f"{event.kind} {name}".strip()


def run_faults(campaign: Campaign, stride: int = 1, first: int = 0) -> dict[str, Tally]:
    """Fail every operation, or every `stride`-th, with every kind of fault."""
    tallies = {}
    for name, kind in FAULTS.items():
        tally = tallies[name] = Tally()
        for number in campaign.cases(kind)[first::stride]:
            operation = " ".join(campaign.operations[number])
            tally.add(f"{name} at operation {number} ({operation})", campaign.fail(kind, number))
    return tallies


def run_power_losses(
    campaign: Campaign, stride: int = 1, first: int = 0, seeds: int = NUM_RANDOM_LOSSES
) -> dict[str, Tally]:
    """Lose power after every event, or every `stride`-th, with every choice of what is left."""
    tallies = {name: Tally() for name in ("killed", *CHOICES, "a random part is left")}
    for number, event, disk in campaign.disks():
        if number % stride != first % stride:
            continue
        choices = [("killed", KILLED), *CHOICES.items()]
        choices += [("a random part is left", random_choice(1000 * number + seed)) for seed in range(seeds)]
        for name, choice in choices:
            tallies[name].add(f"{name} after event {number} ({event})", campaign.lose_power(choice, disk))
    return tallies
