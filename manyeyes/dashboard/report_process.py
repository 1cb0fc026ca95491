"""The report of runs, which the dashboard makes in a process of its own and within a limit of time."""

import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from multiprocessing import get_all_start_methods, get_context, set_forkserver_preload

from manyeyes.dashboard.settings import safe_text
from manyeyes.io.child_process import SignOfLife, call_in_process

MAX_SECONDS = 120.0
SLOW_IMPORTS = ["manyeyes.report.report", "manyeyes.training.run_record"]


def make_report(folders: list[str], colors: Sequence[str] = ()) -> str:
    """Return the page of `manyeyes report`, with the colors that runs have on the dashboard.

    The processes are forked from one that has imported what they need; it is started for the first report.
    """
    can_fork = "forkserver" in get_all_start_methods()
    if can_fork:
        set_forkserver_preload(SLOW_IMPORTS)
    context = get_context("forkserver" if can_fork else "spawn")
    try:
        page: str = call_in_process(context, MAX_SECONDS, _report_page, folders, colors)
    except TimeoutError:
        raise ValueError(f"it takes more than {MAX_SECONDS:g} s. Use `manyeyes report` instead.") from None
    return page


def _report_page(folders: list[str], colors: Sequence[str], _: SignOfLife) -> str:
    """Return the page; a link in a folder is an error, as it could lead anywhere."""
    from manyeyes.report.report import html, sections  # slow to import
    from manyeyes.training.run_names import find_runs

    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False) and not entry.is_file(follow_symlinks=False):
                    raise ValueError(f"{safe_text(entry.name)} is not a regular file: remove it from the run folder.")
    known = [int(color) if color.isdecimal() and len(color) < 4 else None for color in colors]
    runs = [replace(run, color=color) for run, color in zip_longest(find_runs(folders), known[: len(folders)])]
    return html(runs, "", sections(runs))
