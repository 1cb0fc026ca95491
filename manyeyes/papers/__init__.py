"""The papers: every table and figure as runs that a person can type, with the numbers that the paper printed.

ITEMS["hsu2020.table2"].rows[0].runs[0].command      # manyeyes run data=inaturalist ...
"""

from manyeyes.papers import fedper, flair, hsu2020
from manyeyes.papers.exhibit import DatasetRecipe, Exhibit, ExhibitRow, PrintedValue, RunRecipe
from manyeyes.papers.scaling import on_synthetic_data, scale

__all__ = [
    "ITEMS",
    "DatasetRecipe",
    "Exhibit",
    "ExhibitRow",
    "PrintedValue",
    "RunRecipe",
    "item",
    "on_synthetic_data",
    "scale",
]

ITEMS: dict[str, Exhibit] = {one.key: one for one in (*flair.ITEMS, *hsu2020.ITEMS, *fedper.ITEMS)}


def item(key: str) -> Exhibit:
    if key not in ITEMS:
        raise ValueError(f"there is no {key!r} in the papers: choose {', '.join(ITEMS)}")
    return ITEMS[key]
