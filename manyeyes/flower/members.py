"""Members of a federated run: the clients that joined at its start, and how many images each of them holds."""

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
    height: int
    width: int


@dataclass(frozen=True)
class ClientInfo:
    """What a client reports about itself."""

    name: str
    user_id: int  # in the population that its store was split from; -1 without one
    num_examples: int
    num_test_examples: int
    data: DataFormat
    class_counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Member:
    """A client of the run; random draws depend on `client_id`."""

    name: str
    client_id: int
    num_examples: int
    num_test_examples: int


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

    def name_of(self, client_id: int) -> str:
        return next(m.name for m in self.all if m.client_id == client_id)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for the run folder."""
        data = asdict(self.data) | {"classes": list(self.data.classes)}
        target = list(self.target_distribution)
        return {"all": [asdict(m) for m in self.all], "data": data, "target_distribution": target}

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> Members:
        """Return the members that `to_dict` described."""
        data = content["data"] | {"classes": tuple(content["data"]["classes"])}
        members = tuple(Member(**member) for member in content["all"])
        return Members(members, DataFormat(**data), tuple(content["target_distribution"]))


def read_client_info(content: RecordDict, config: FederationConfig, needs_class_counts: bool) -> ClientInfo:
    """Return what a client reports about itself, checked."""
    info = parse_config(content, INFO_TYPES)
    num_examples, num_test_examples = info["num_examples"], info["num_test_examples"]
    max_reported = max(num_examples, num_test_examples)
    classes = tuple(info["classes"])
    is_name = 0 < len(info["name"]) <= MAX_NAME_CHARACTERS and info["name"].isprintable()
    is_size = 0 < info["height"] <= MAX_IMAGE_SIDE and 0 < info["width"] <= MAX_IMAGE_SIDE
    checks = (
        (is_name, "its name is empty, too long or not printable"),
        (bool(classes) and all(isinstance(name, str) for name in classes), "it reports no class names"),
        (is_size, f"it reports images of {info['height']} x {info['width']} pixels"),
        (num_examples >= 1 and num_test_examples >= 0, "it has no training images"),
        (
            max_reported <= config.max_examples,
            f"it reports {max_reported:,} images, and max_examples is {config.max_examples:,}",
        ),
    )
    for is_valid, reason in checks:
        if not is_valid:
            raise InvalidReply(reason)
    counts = _read_class_counts(content, len(classes), num_examples) if needs_class_counts else ()
    data = DataFormat(classes, bool(info["multi"]), info["height"], info["width"])
    return ClientInfo(info["name"], info["user_id"], num_examples, num_test_examples, data, counts)


def _read_class_counts(content: RecordDict, num_classes: int, num_examples: int) -> tuple[int, ...]:
    counts: list[Any] = parse_config(content, {"class_counts": list})["class_counts"]
    are_counts = len(counts) == num_classes and all(type(count) is int and count >= 0 for count in counts)
    if not are_counts or sum(counts) != num_examples:
        raise InvalidReply(f"its class counts do not add up to its {num_examples} training images")
    return tuple(counts)


def resolve_members(infos: Mapping[int, ClientInfo]) -> tuple[Members, dict[int, int], dict[int, str]]:
    """Return the members, the node of each client id, and why other nodes are rejected.

    All members must have the data format that most clients report.
    """
    data = Counter(info.data for info in infos.values()).most_common(1)[0][0]
    nodes: dict[str, int] = {}
    rejections: dict[int, str] = {}
    for node in sorted(infos):
        info = infos[node]
        if info.data != data:
            rejections[node] = f"{info.name}: its classes or image size differ from those of the other clients"
        elif info.name in nodes:
            rejections[node] = f"{info.name}: another client has this name"
        else:
            nodes[info.name] = node
    names = sorted(nodes, key=_natural_order)
    client_ids = [infos[nodes[name]].user_id for name in names]
    if len(set(client_ids)) < len(client_ids) or not all(0 <= id < MAX_USER_ID for id in client_ids):
        client_ids = list(range(len(names)))
    accepted = [(id, infos[nodes[name]]) for id, name in sorted(zip(client_ids, names, strict=True))]
    members = tuple(Member(info.name, id, info.num_examples, info.num_test_examples) for id, info in accepted)
    class_counts = np.sum([info.class_counts for _, info in accepted], axis=0)
    target = tuple((class_counts / class_counts.sum()).tolist()) if np.size(class_counts) else ()
    return Members(members, data, target), {id: nodes[info.name] for id, info in accepted}, rejections


def _natural_order(name: str) -> list[tuple[int, str]]:
    """Return a sort key by which user2 comes before user10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
