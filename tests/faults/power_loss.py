"""What a disk holds after a power loss: what was flushed, and any part of the rest.

The model is weaker than the file systems in use. A flush of a file makes its content durable, not its name; a flush of
a folder makes its names durable. Everything else may be lost on its own: each write is there, missing (then zeros, or
the end of the file) or torn, and each name is the new or the old one, except that changes of one name keep their order
and that a rename happens completely or not at all.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(eq=False)
class Node:
    """A file with its content, or a folder with its entries."""

    entries: dict[str, Node] | None = None
    content: bytearray = field(default_factory=bytearray)

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Node]]:
        for name, node in sorted((self.entries or {}).items()):
            yield prefix + name, node
            yield from node.walk(f"{prefix}{name}/")


@dataclass(frozen=True, eq=False)
class Event:
    """A change of a file or a folder that happened, or a flush of one (of all with node None)."""

    kind: str  # write, truncate, link, unlink, rename or sync
    node: Node | None
    data: bytes = b""  # that was written
    offset: int = 0  # where it was written, or the new size
    entry: tuple[Node, str] | None = None  # a folder and a name
    source: tuple[Node, str] | None = None  # of a rename


def apply(event: Event) -> None:
    """Do to the nodes what an event did to the files."""
    if event.kind == "write":
        assert event.node is not None, "a write has a file"
        write(event.node.content, event.offset, event.data)
    elif event.kind == "truncate":
        assert event.node is not None, "a truncation has a file"
        resize(event.node.content, event.offset)
    elif event.kind in ("link", "unlink", "rename"):
        for folder, name, node in entry_changes(event):
            assert folder.entries is not None, "an entry is in a folder"
            if node is None:
                folder.entries.pop(name)
            else:
                folder.entries[name] = node


def entry_changes(event: Event) -> list[tuple[Node, str, Node | None]]:
    """Return the entries that an event sets, or removes with None."""
    assert event.entry is not None, "the event is of an entry"
    changes: list[tuple[Node, str, Node | None]] = [] if event.source is None else [(*event.source, None)]
    return [*changes, (*event.entry, None if event.kind == "unlink" else event.node)]


def write(content: bytearray, offset: int, data: bytes) -> None:
    resize(content, max(len(content), offset))
    content[offset : offset + len(data)] = data


def resize(content: bytearray, size: int) -> None:
    del content[size:]
    content.extend(bytes(size - len(content)))


def contents(node: Node) -> dict[str, bytes | None]:
    """Return the files of a tree by their paths; folders are None."""
    return {name: None if child.entries is not None else bytes(child.content) for name, child in node.walk()}


class Disk:
    """The durable files of a folder, and the events that are not durable."""

    def __init__(self, root: Node) -> None:
        self.root = root
        self.entries: dict[tuple[Node, str], Node] = {}
        self.contents: dict[Node, bytes] = {}
        self.pending_entries: list[Event] = []
        self.pending_data: dict[Node, list[Event]] = {}
        for folder in (root, *(node for _, node in root.walk() if node.entries is not None)):
            for name, node in (folder.entries or {}).items():
                self.entries[folder, name] = node
                self.contents[node] = bytes(node.content)

    def add(self, event: Event) -> None:
        """Take in the next event."""
        if event.kind in ("write", "truncate"):
            assert event.node is not None, "data have a file"
            self.pending_data.setdefault(event.node, []).append(event)
        elif event.kind != "sync":
            self.pending_entries.append(event)
        elif event.node is None:
            self._commit(self.pending_entries)
            for node in list(self.pending_data):
                self._sync_file(node)
        elif event.node.entries is None:
            self._sync_file(event.node)
        else:
            self._commit(self._needed_for(event.node))

    def after_power_loss(self, choice: Choice) -> Node:
        """Return the files that are left."""
        entries, dropped = dict(self.entries), set[tuple[int, str]]()
        for event in self.pending_entries:
            keys = {(id(folder), name) for folder, name, _ in entry_changes(event)}
            if keys & dropped or not choice.keeps_entry():
                dropped |= keys
            else:
                _change(entries, event)
        return self._build(self.root, entries, choice)

    def _build(self, node: Node, entries: dict[tuple[Node, str], Node], choice: Choice) -> Node:
        if node.entries is None:
            content = bytearray(self.contents.get(node, b""))
            for event in self.pending_data.get(node, ()):
                size = choice.kept_bytes(event)
                if event.kind == "truncate" and size:
                    resize(content, event.offset)
                elif event.kind == "write" and size:
                    write(content, event.offset, event.data[:size])
            return Node(None, content)
        names = {name: child for (folder, name), child in entries.items() if folder is node}
        return Node({name: self._build(child, entries, choice) for name, child in sorted(names.items())})

    def _sync_file(self, node: Node) -> None:
        content = bytearray(self.contents.get(node, b""))
        for event in self.pending_data.pop(node, ()):
            if event.kind == "truncate":
                resize(content, event.offset)
            else:
                write(content, event.offset, event.data)
        self.contents[node] = bytes(content)

    def _needed_for(self, folder: Node) -> list[Event]:
        """Return the events of a folder's entries, and earlier ones of entries that they depend on."""
        needed, keys = list[Event](), set[tuple[int, str]]()
        for event in reversed(self.pending_entries):
            changes = entry_changes(event)
            touched = {(id(parent), name) for parent, name, _ in changes}
            if touched & keys or any(parent is folder for parent, _, _ in changes):
                needed.append(event)
                keys |= touched
        return needed[::-1]

    def _commit(self, events: list[Event]) -> None:
        for event in list(events):
            _change(self.entries, event)
            self.pending_entries.remove(event)


def _change(entries: dict[tuple[Node, str], Node], event: Event) -> None:
    for folder, name, node in entry_changes(event):
        if node is None:
            entries.pop((folder, name))
        else:
            entries[folder, name] = node


@dataclass(frozen=True)
class Choice:
    """What of the events that are not durable a power loss leaves."""

    keeps_entry: Callable[[], bool]
    kept_bytes: Callable[[Event], int]  # of a write; 0 or not of a truncation


def _all_bytes(event: Event) -> int:
    return len(event.data) or 1


KILLED = Choice(lambda: True, _all_bytes)  # of a process that is killed, everything is left
CHOICES = {
    "nothing is left": Choice(lambda: False, lambda _: 0),
    "names are left, data are not": Choice(lambda: True, lambda _: 0),
    "data are left, names are not": Choice(lambda: False, _all_bytes),
}


def random_choice(seed: int) -> Choice:
    """Keep each name and write with probability 1/2, and tear a fifth of the writes."""
    rng = random.Random(seed)

    def kept_bytes(event: Event) -> int:
        is_torn = event.kind == "write" and rng.random() < 0.2
        return rng.randrange(len(event.data)) if is_torn else _all_bytes(event) if rng.random() < 0.5 else 0

    return Choice(lambda: rng.random() < 0.5, kept_bytes)
