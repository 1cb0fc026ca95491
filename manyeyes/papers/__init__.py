"""Every table and figure of three papers: the runs behind it as `manyeyes run` commands, and the printed numbers.

EXHIBITS["hsu2020.table2"].rows[0].runs[0].command      # manyeyes run data=inaturalist ...
"""

from manyeyes.papers import fedper, flair, hsu2020
from manyeyes.papers.exhibit import DatasetRecipe, Exhibit, ExhibitRow, PrintedValue, RunRecipe
from manyeyes.papers.scaling import on_synthetic_data, scale

__all__ = [
    "EXHIBITS", "DatasetRecipe", "Exhibit", "ExhibitRow", "PrintedValue", "RunRecipe",
    "get_exhibit", "get_exhibits", "on_synthetic_data", "scale",
]  # fmt: skip

EXHIBITS = {exhibit.key: exhibit for exhibit in (*flair.EXHIBITS, *hsu2020.EXHIBITS, *fedper.EXHIBITS)}


def get_exhibit(key: str) -> Exhibit:
    """Return the table or figure with a key such as "hsu2020.table2"."""
    if key not in EXHIBITS:
        raise ValueError(f"Unknown table or figure {key!r}: choose {', '.join(EXHIBITS)}.")
    return EXHIBITS[key]


def get_exhibits(key: str) -> list[Exhibit]:
    """Return one table or figure, or all of a paper's by its name, such as "fedper"."""
    return [exhibit for exhibit in EXHIBITS.values() if exhibit.paper == key] or [get_exhibit(key)]
