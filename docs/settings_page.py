"""The page of all settings, docs/reference.md, from the declarations: a section for each group, a table for each choice.

python -m docs.settings_page
"""

from itertools import groupby
from pathlib import Path

from manyeyes.config.groups import GROUPS
from manyeyes.config.help import Row, describe_choice, describe_default, setting_sections

FILE = Path(__file__).with_name("reference.md")
HEAD = """# Settings

Every setting of `manyeyes run`, with its default as you would type it. Every option is declared once, on its component; this page
is written from the declarations by `make reference`, and a test compares them. On the command line, `manyeyes run --help` prints the
same lists, and `manyeyes run GROUP=CHOICE --help` all options of one choice. [Runs](runs.md) explains how settings are given,
[Components](api_components.md) has the classes behind the choices.
"""
RESERVED = str.maketrans({"|": "\\|", "<": "&lt;", "*": "\\*", "_": "\\_"})  # in the text of a table


def page() -> str:
    """Return the page in Markdown."""
    lead = "A group chooses one component, or of trackers, callbacks and metrics several.\n"
    parts = [HEAD, "## Groups\n", lead, _group_table()]
    for name, sections in groupby(setting_sections(), key=lambda section: section[0]):
        if name and name != "engine":
            parts.append(f"## {name}\n")
        for _, title, rows in sections:
            parts += [_heading(name, title), _table(rows)]
    return "\n".join(parts)


def _heading(name: str, title: str) -> str:
    """Return the heading of a section; of a choice, with what the component is."""
    choice, _, note = title.removeprefix(f"{name}=").partition(" ")
    if title == choice or not title.startswith(f"{name}="):
        return f"## {title}\n"
    text = " ".join(filter(None, [describe_choice(GROUPS[name], choice).translate(RESERVED), note.capitalize()]))
    return f"### {name}={choice}\n" + (f"\n{text}\n" if text else "")


def _group_table() -> str:
    has_section, lines = {name for name, _, _ in setting_sections()} - {"engine"}, []
    for name, group in GROUPS.items():
        choices = ", ".join(f"`{choice}`" for choice in group.choices())
        link = f"[`{name}`](#{name})" if name in has_section else f"`{name}`"
        lines.append(f"| {link} | {describe_default(group)} | {choices} |\n")
    return "| group | default | choices |\n|---|---|---|\n" + "".join(lines)


def _table(rows: list[Row]) -> str:
    body = (f"| `{setting}` | {help.translate(RESERVED)} |\n" for setting, help in rows)
    return "| setting | meaning |\n|---|---|\n" + "".join(body)


if __name__ == "__main__":
    FILE.write_text(page(), "utf-8")
