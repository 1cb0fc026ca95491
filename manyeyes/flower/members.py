"""The members of a federated run: who they are and how much they hold, as they said at its start."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from flwr.app import RecordDict

from manyeyes.core.population import Labels, MultiLabels, Population, SingleLabels
from manyeyes.flower.config import FederationConfig
from manyeyes.flower.wire import InvalidReply, parse_config

SAID = {"name": str, "number": int, "examples": int, "tests": int, "classes": list, "multi": int}
SAID |= {"height": int, "width": int}
MOST_NUMBERS = 2**24  # some parts keep a place for each number up to the largest


@dataclass(frozen=True)
class ClientInfo:
    """What a client says of itself."""

    name: str
    number: int  # in the population that its store was split from; -1: in none
    examples: int
    tests: int
    what: tuple[tuple[str, ...], bool, int, int]  # classes, whether an example has several, height, width
    counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Member:
    """A client of the run; `key` is what chance knows it by."""

    name: str
    key: int
    examples: int
    tests: int


@dataclass(frozen=True)
class Members:
    """All of them, in the order of their keys; fixed for the run."""

    all: tuple[Member, ...]
    classes: tuple[str, ...]
    multi: bool
    height: int
    width: int
    target: tuple[float, ...] = ()  # p(y) of all together, where the algorithm needs it

    def population(self, tests: bool = False) -> Population:
        """How much each holds, without anything that they hold."""
        those = [m for m in self.all if not tests or m.tests]
        sizes = [m.tests if tests else m.examples for m in those]
        total = sum(sizes)
        labels: Labels = SingleLabels(np.zeros(total, np.int64), self.classes)
        if self.multi:
            labels = MultiLabels(np.zeros(total + 1, np.int64), np.zeros(0, np.int64), self.classes)
        return Population(
            images=np.zeros((0, self.height, self.width, 3), np.uint8),
            labels=labels,
            offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
            user_ids=np.array([m.key for m in those], np.int64),
            image_indices=np.zeros(total, np.int64),
            user_names=np.array([m.name for m in those]),
        )

    def describe(self) -> dict[str, Any]:
        words = asdict(self)
        return words | {
            "all": [asdict(m) for m in self.all],
            "classes": list(self.classes),
            "target": list(self.target),
        }

    @staticmethod
    def from_infos(words: Mapping[str, Any]) -> Members:
        """From what `describe` wrote."""
        rest = {name: words[name] for name in ("multi", "height", "width")}
        return Members(
            tuple(Member(**m) for m in words["all"]), tuple(words["classes"]), **rest, target=tuple(words["target"])
        )


def read_client_info(content: RecordDict, rules: FederationConfig, counts: bool) -> ClientInfo:
    """What a client says of itself, as far as it can be believed."""
    said = parse_config(content, SAID)
    classes = tuple(said["classes"])
    if not 0 < len(said["name"]) <= 200 or not said["name"].isprintable():
        raise InvalidReply("its name is empty, too long or not printable")
    if not classes or not all(isinstance(name, str) for name in classes):
        raise InvalidReply("it names no classes")
    if not (0 < said["height"] <= 4096 and 0 < said["width"] <= 4096):
        raise InvalidReply(f"its images are {said['height']} x {said['width']}")
    if said["examples"] < 1:
        raise InvalidReply("it holds no photos to train on")
    if max(said["examples"], said["tests"]) > rules.max_examples or said["tests"] < 0:
        many = max(said["examples"], said["tests"])
        raise InvalidReply(f"it says that it holds {many:,} photos, and most_examples is {rules.max_examples:,}")
    found: list[int] = []
    if counts:
        found = parse_config(content, {"counts": list})["counts"]
        right = len(found) == len(classes) and all(type(c) is int and c >= 0 for c in found)
        if not right or sum(found) != said["examples"]:
            raise InvalidReply(f"its counts of classes are not those of {said['examples']} photos")
    what = (classes, bool(said["multi"]), said["height"], said["width"])
    return ClientInfo(said["name"], said["number"], said["examples"], said["tests"], what, tuple(found))


def resolve_members(said: Mapping[int, ClientInfo]) -> tuple[Members, dict[int, int], dict[int, str]]:
    """The members, which node is which key, and why other nodes are none: what most of the clients hold, all must."""
    common = Counter(one.what for one in said.values()).most_common(1)[0][0]
    nodes: dict[str, int] = {}
    why: dict[int, str] = {}
    for node in sorted(said):
        one = said[node]
        if one.what != common:
            why[node] = f"{one.name}: its classes or image size are not those of the others"
        elif one.name in nodes:
            why[node] = f"{one.name}: another client has this name already"
        else:
            nodes[one.name] = node
    names = sorted(nodes, key=_natural)
    numbers = [said[nodes[name]].number for name in names]
    if len(set(numbers)) < len(numbers) or not all(0 <= n < MOST_NUMBERS for n in numbers):
        numbers = list(range(len(names)))
    keyed = sorted(zip(numbers, names, strict=True))
    members = [Member(name, key, said[nodes[name]].examples, said[nodes[name]].tests) for key, name in keyed]
    counts = np.sum([said[nodes[name]].counts for name in names], axis=0)
    target = tuple((counts / counts.sum()).tolist()) if np.size(counts) else ()
    return Members(tuple(members), *common, target), {nodes[name]: key for key, name in keyed}, why


def _natural(name: str) -> list[tuple[int, str]]:
    """user2 comes before user10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
