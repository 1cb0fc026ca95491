"""Members of a federated run: the clients that joined at its start, and how many images each of them holds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from flwr.app import RecordDict

from manyeyes.core.algorithm import Doubles
from manyeyes.core.population import Labels, MultiLabels, Population, SingleLabels
from manyeyes.core.registry import check_options, option
from manyeyes.flower.app import MAX_EXAMPLES, FederationConfig
from manyeyes.flower.messages import InvalidReply, parse_config
from manyeyes.flower.protection import max_counted

INFO_TYPES = {"name": str, "user_id": int, "num_examples": int, "num_test_examples": int}
INFO_TYPES |= {"classes": list, "multi": int, "height": int, "width": int}
MAX_NAME_CHARACTERS = 200
MAX_IMAGE_SIDE = 4096
MAX_USER_ID = 2**24  # some components allocate an entry for each id up to the largest


@dataclass(frozen=True)
class DataFormat:
    """What all members must agree on."""

    classes: tuple[str, ...]
    multi: bool  # several labels per image
    height: int = option(minimum=1, maximum=MAX_IMAGE_SIDE)
    width: int = option(minimum=1, maximum=MAX_IMAGE_SIDE)


@dataclass(frozen=True)
class Member:
    """A client of the run; random draws depend on `client_id`."""

    name: str
    client_id: int = option(maximum=MAX_USER_ID - 1)  # a client reports its user id in the population, or -1
    num_examples: int = option(minimum=0, maximum=MAX_EXAMPLES)
    num_test_examples: int = option(minimum=0, maximum=MAX_EXAMPLES)


@dataclass(frozen=True)
class ClientInfo:
    """What a client reports about itself."""

    member: Member
    data: DataFormat
    class_counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Members:
    """All members in the order of their client ids; fixed for the run."""

    all: tuple[Member, ...]
    data: DataFormat
    target_distribution: tuple[float, ...] = ()  # p(y) of all together, where the algorithm needs it

    def population(self, test: bool = False) -> Population:
        """Return how many examples each member has for training (or for test), without any images or labels."""
        members = [m for m in self.all if not test or m.num_test_examples]
        counts = [m.num_test_examples if test else m.num_examples for m in members]
        total = sum(counts)
        labels: Labels = SingleLabels(np.zeros(total, np.int64), self.data.classes)
        if self.data.multi:
            labels = MultiLabels(np.zeros(total + 1, np.int64), np.zeros(0, np.int64), self.data.classes)
        return Population(
            images=np.zeros((0, self.data.height, self.data.width, 3), np.uint8),
            labels=labels,
            offsets=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            user_ids=np.array([m.client_id for m in members], np.int64),
            image_indices=np.zeros(total, np.int64),
            user_names=np.array([m.name for m in members]),
        )

    @cached_property
    def by_id(self) -> dict[int, Member]:
        return {member.client_id: member for member in self.all}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Members:
        """Return the members that a run folder describes, by `asdict`; wrong values raise KeyError, TypeError or ValueError."""
        data = DataFormat(**content["data"] | {"classes": tuple(content["data"]["classes"])})
        members = Members(tuple(Member(**m) for m in content["all"]), data, tuple(content["target_distribution"]))
        for checked in (members, data, *members.all):
            check_options(checked, "members")
        if not members.all or len(members.by_id) < len(members.all):
            raise ValueError("two members have the same client id, or there are none")
        return members


def read_client_info(content: RecordDict, config: FederationConfig, needs_class_counts: bool) -> ClientInfo:
    """Return what a client reports about itself, checked."""
    info = parse_config(content, INFO_TYPES | ({"class_counts": list} if needs_class_counts else {}))
    member = Member(info["name"], info["user_id"], info["num_examples"], info["num_test_examples"])
    data = DataFormat(tuple(info["classes"]), bool(info["multi"]), info["height"], info["width"])
    counts = tuple(info.get("class_counts", ()))
    max_reported, limit = max(member.num_examples, member.num_test_examples), config.max_examples
    is_name = 0 < len(member.name) <= MAX_NAME_CHARACTERS and member.name.isprintable()
    has_classes = bool(data.classes) and all(isinstance(name, str) for name in data.classes)
    is_size = 0 < data.height <= MAX_IMAGE_SIDE and 0 < data.width <= MAX_IMAGE_SIDE
    are_counts = len(counts) == len(data.classes) and all(type(count) is int and count >= 0 for count in counts)
    is_sum = not needs_class_counts or (are_counts and sum(counts) == member.num_examples)
    for is_valid, reason in (
        (is_name, "its name is empty, too long or not printable"),
        (has_classes, "it reports no class names"),
        (is_size, f"it reports images of {data.height} x {data.width} pixels"),
        (member.num_examples >= 1 and member.num_test_examples >= 0, "it has no training images"),
        (max_reported <= limit, f"it reports {max_reported:,} images, and max_examples is {limit:,}"),
        (is_sum, f"its class counts do not add up to its {member.num_examples} training images"),
    ):
        if not is_valid:
            raise InvalidReply(reason)
    return ClientInfo(member, data, counts)


def resolve_members(
    infos: Mapping[int, ClientInfo], config: FederationConfig
) -> tuple[Members, dict[int, int], dict[int, str]]:
    """Return the members, the node of each client id, and why other nodes are rejected.

    All members must have the data format that most clients report. For p(y), a client counts for at most the number of
    images that `max_weight_ratio` allows.
    """
    data = Counter(info.data for info in infos.values()).most_common(1)[0][0]
    nodes: dict[str, int] = {}
    rejections: dict[int, str] = {}
    for node in sorted(infos):
        name = infos[node].member.name
        if infos[node].data != data:
            rejections[node] = f"{name}: its classes or image size differ from those of the other clients"
        elif name in nodes:
            rejections[node] = f"{name}: another client has this name"
        else:
            nodes[name] = node
    members = [infos[nodes[name]].member for name in sorted(nodes, key=_natural_order)]
    user_ids = {member.client_id for member in members}
    if len(user_ids) < len(members) or not all(0 <= id < MAX_USER_ID for id in user_ids):
        members = [replace(member, client_id=id) for id, member in enumerate(members)]
    members.sort(key=lambda member: member.client_id)
    limit = max_counted([infos[node].member.num_examples for node in nodes.values()], config)
    class_counts = np.sum([_bounded_counts(infos[node], limit) for node in nodes.values()], axis=0)
    target = tuple((class_counts / class_counts.sum()).tolist()) if np.size(class_counts) else ()
    return Members(tuple(members), data, target), {m.client_id: nodes[m.name] for m in members}, rejections


def _bounded_counts(info: ClientInfo, limit: int) -> Doubles:
    """Return the class counts of a client, scaled down to a number of images."""
    return np.array(info.class_counts, np.float64) * min(1.0, limit / info.member.num_examples)


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which user2 comes before user10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
