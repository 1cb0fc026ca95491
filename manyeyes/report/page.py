"""A page: one HTML file that holds its own pictures, style and scripts, and asks nothing of any server."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape as escape_markup
from typing import Protocol

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --paper: #ffffff; --line: #d0d7de; --link: #0059a3 }
@media screen and (prefers-color-scheme: dark) {
  :root { --ink: #e6edf3; --soft: #a3adb8; --paper: #14181d; --line: #3d444d; --link: #79c0ff }
  figure.chart img { filter: brightness(.9) }
}
* { box-sizing: border-box }
body { margin: 0 auto; padding: 1rem; max-width: 76rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); overflow-wrap: break-word }
h1 { line-height: 1.2 }
h2 { margin: 2.5rem 0 .5rem; border-bottom: 1px solid var(--line) }
h3 { margin: 1.25rem 0 .25rem; font-size: 1rem }
p { max-width: 48rem }
a { color: var(--link) }
a:focus-visible, .wide:focus-visible { outline: 3px solid var(--link); outline-offset: 2px }
.skip { position: absolute; left: -100vw }
.skip:focus { position: static }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; padding: 0; list-style: none }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 28rem), 1fr)); gap: 1.5rem }
figure { margin: 0 }
figure.chart { max-width: 42rem }
figure.chart img { width: 100%; height: auto; background: #fff; border: 1px solid var(--line); border-radius: 6px }
figcaption, caption { color: var(--soft); text-align: left; font-size: .9rem }
.wide { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
caption { padding-bottom: .25rem }
th, td { padding: .2rem .75rem .2rem 0; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top }
tr > * { white-space: nowrap; font-weight: normal }
tr > :first-child { position: sticky; left: 0; background: var(--paper); white-space: normal; min-width: 8rem;
  text-align: left }
thead th { font-weight: 600 }
.words tr > * { white-space: normal; text-align: left; min-width: 4.5rem }
.strips { display: inline-block; vertical-align: top; margin-right: 1.5rem }
.strip { display: flex; flex-wrap: wrap; gap: .4rem; margin: 0; padding: 0; list-style: none }
.strip img { width: 6rem; height: 6rem; object-fit: contain; display: block; background: #8883 }
.strip img.tiny { image-rendering: pixelated }
@media (max-width: 40rem) { table { font-size: .85rem } }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt }
  nav, .skip { display: none }
  .charts { grid-template-columns: 1fr 1fr }
  figure, tr, .strips { break-inside: avoid }
  h2, h3 { break-after: avoid }
  caption, thead { break-after: avoid }
  tbody tr:first-child { break-before: avoid }
  table:not(:has(tr:nth-child(13))) { break-inside: avoid }
  .strip img { width: 4.5rem; height: 4.5rem }
}
"""
# Beside being written without references, the page forbids the browser to follow any, or to run what is not its own.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_LESS = chr(92) + "u003c"  # how JSON can say < so that no markup begins in it
TINY = 96  # pixels below which an image is enlarged as squares, not smeared


def printable(text: str) -> str:
    """The text without what a terminal, a font or a page could stumble over."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def escape(text: str) -> str:
    """The text as it may stand in the page, be it within quotes."""
    return escape_markup(printable(text))


class Block(Protocol):
    """Something that can stand in a section."""

    def html(self) -> str: ...


@dataclass(frozen=True)
class Image:
    """A picture inside the page; `alt` is what someone who cannot see it is told."""

    data: bytes
    kind: str  # svg+xml, png or jpeg
    alt: str
    width: int = TINY

    def html(self) -> str:
        source = f"data:image/{self.kind};base64,{base64.b64encode(self.data).decode()}"
        tiny = ' class="tiny"' if self.width < TINY else ""
        return f'<img{tiny} alt="{escape(self.alt)}" src="{source}">'


@dataclass(frozen=True)
class Charts:
    """Pictures with captions, side by side where there is room."""

    charts: Sequence[tuple[Image, str]]

    def html(self) -> str:
        each = (
            f'<figure class="chart">{image.html()}<figcaption>{escape(caption)}</figcaption></figure>'
            for image, caption in self.charts
        )
        return f'<div class="charts">{"".join(each)}</div>'


@dataclass(frozen=True)
class Strip:
    """Small pictures in a row, below a heading of their own; short strips stand side by side."""

    title: str
    images: Sequence[Image]

    def html(self) -> str:
        items = "".join(f"<li>{image.html()}</li>" for image in self.images)
        return f'<div class="strips"><h3>{escape(self.title)}</h3><ul class="strip">{items}</ul></div>'


@dataclass(frozen=True)
class Table:
    """Rows of text; the first cell of a row says what the row is."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: bool = False  # whether cells are words, which break into lines, and not numbers, which do not

    def html(self) -> str:
        head = "".join(f'<th scope="col">{escape(cell)}</th>' if cell else "<td></td>" for cell in self.head)
        rows = "".join(
            f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
            for first, *cells in self.rows
        )
        caption, kind = escape(self.caption), ' class="words"' if self.words else ""
        # A table that is wider than a phone scrolls, with the keyboard too.
        return (
            f'<div class="wide" role="region" tabindex="0" aria-label="{caption}"><table{kind}>'
            f"<caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
        )


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it; plain text is a paragraph."""

    title: str
    content: Sequence[str | Block]

    def html(self, number: int) -> str:
        blocks = (f"<p>{escape(block)}</p>" if isinstance(block, str) else block.html() for block in self.content)
        title = f'<h2 id="part-{number}-title">{escape(self.title)}</h2>'
        return f'<section id="part-{number}" aria-labelledby="part-{number}-title">{title}{"".join(blocks)}</section>\n'


def page(
    title: str, lead: str, sections: Sequence[Section], style: str = "", scripts: Sequence[str] = (), data: str = ""
) -> str:
    """The whole file; `style` is added to that of all pages, and scripts find `data`, which is JSON, in `#data`."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    policy = "; script-src ".join([POLICY, *([" ".join(f"'sha256-{each}'" for each in digests)] if scripts else [])])
    behind = f'<script type="application/json" id="data">{data.replace("<", _LESS)}</script>\n' if data else ""
    behind += "".join(f"<script>{script}</script>\n" for script in scripts)
    links = "".join(
        f'<li><a href="#part-{number}">{escape(section.title)}</a></li>' for number, section in enumerate(sections)
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header><h1>{escape(title)}</h1><p>{escape(lead)}</p><nav aria-label="Sections"><ul>{links}</ul></nav></header>
<main id="content">
{"".join(section.html(number) for number, section in enumerate(sections))}</main>
{behind}</body>
</html>
"""
