"""The papers: every table and figure as runs that a person can type, with the numbers that the paper printed.

ITEMS["hsu2020.table2"].rows[0].runs[0].command      # manyeyes run data=inaturalist ...
"""

from __future__ import annotations

from manyeyes.papers import fedper, flair, hsu2020
from manyeyes.papers.item import Item, Number, Row, Run, Store
from manyeyes.papers.scaling import scale, stand_in

__all__ = ["ITEMS", "Item", "Number", "Row", "Run", "Store", "item", "scale", "stand_in"]

ITEMS: dict[str, Item] = {one.key: one for one in (*flair.ITEMS, *hsu2020.ITEMS, *fedper.ITEMS)}


def item(key: str) -> Item:
    if key not in ITEMS:
        raise ValueError(f"there is no {key!r} in the papers: choose {', '.join(ITEMS)}")
    return ITEMS[key]
