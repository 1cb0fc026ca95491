"""A page: one HTML file that contains its pictures, style and scripts, and loads nothing from anywhere."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Protocol

from manyeyes.report.chart import Chart
from manyeyes.report.svg import render_svg
from manyeyes.report.text import escape
from manyeyes.report.theme import DARK, LIGHT, PAGE

# The page has no references to other files, and in addition forbids the browser to follow any or to run other scripts.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
ESCAPED_LESS_THAN = chr(92) + "u003c"  # in JSON, so that no markup can begin in it
MAX_STILL_POINTS = 800  # of the picture of a chart, which a script replaces
PIXELATED_BELOW = 96  # pixels; a smaller image is enlarged without smoothing


class Block(Protocol):
    """Content of a section."""

    def html(self) -> str: ...


@dataclass(frozen=True)
class Html:
    """Markup, in which all text is escaped."""

    markup: str

    def html(self) -> str:
        return self.markup


@dataclass(frozen=True)
class Folded:
    """Content that is shown when the reader opens it."""

    title: str
    content: Sequence[Block]

    def html(self) -> str:
        blocks = "".join(block.html() for block in self.content)
        return f"<details><summary>{escape(self.title)}</summary>{blocks}</details>"


@dataclass(frozen=True)
class Image:
    """A picture inside the page."""

    data: bytes
    format: str  # png or jpeg
    alt: str
    width: int = PIXELATED_BELOW
    caption: Sequence[str] = ()  # lines

    def html(self) -> str:
        source = f"data:image/{self.format};base64,{base64.b64encode(self.data).decode()}"
        style = ' class="pixelated"' if self.width < PIXELATED_BELOW else ""
        caption = f"<small>{'<br>'.join(map(escape, self.caption))}</small>" if self.caption else ""
        return f'<img{style} alt="{escape(self.alt)}" src="{source}">{caption}'


@dataclass(frozen=True)
class ImageStrip:
    """Small pictures in a row below a heading; short strips are next to each other."""

    title: str
    images: Sequence[Image]

    def html(self) -> str:
        items = "".join(f"<li>{image.html()}</li>" for image in self.images)
        return f'<div class="strips"><h3>{escape(self.title)}</h3><ul class="strip">{items}</ul></div>'


@dataclass(frozen=True)
class ChartGrid:
    """Charts next to each other where there is room, or one chart whose metric and x axis the reader chooses."""

    charts: Sequence[Chart]
    explorer: Mapping[str, Any] | None = None  # the curves to choose from

    def with_caveat(self, text: str) -> "ChartGrid":
        return replace(self, charts=[chart.with_caveat(text) for chart in self.charts])

    def html(self) -> str:
        style = 'class="grid three"' if len(self.charts) == 3 else 'class="grid"'
        attribute = 'id="explorer"' if self.explorer else style
        return f"<div {attribute}>{''.join(map(chart_html, self.charts))}</div>"


@dataclass(frozen=True)
class Section:
    """A heading and the content below it; plain text is a paragraph."""

    title: str
    content: Sequence[str | Block]

    @property
    def charts(self) -> list[Chart]:
        return [chart for block in self.content for chart in getattr(block, "charts", ())]

    def with_caveat(self, text: str) -> "Section":
        """Return the section whose charts say something of their data."""
        blocks = (block.with_caveat(text) if isinstance(block, ChartGrid) else block for block in self.content)
        return replace(self, content=list(blocks))

    def html(self, number: int) -> str:
        blocks = (f"<p>{escape(block)}</p>" if isinstance(block, str) else block.html() for block in self.content)
        title = f'<h2 id="section-{number}-title">{escape(self.title)}</h2>'
        attributes = f'id="section-{number}" aria-labelledby="section-{number}-title"'
        return f"<section {attributes}>{title}{''.join(blocks)}</section>\n"


def chart_html(chart: Chart) -> str:
    """Return a chart as a figure: a still picture until a script replaces it, the caption, and a table of numbers."""
    caption = f"<figcaption>{escape(chart.caption)}</figcaption>" if chart.caption else ""
    table = f"<details><summary>Numbers</summary>{chart.table().html()}</details>"
    picture = f"<div>{render_svg(chart.downsample(MAX_STILL_POINTS), PAGE)}</div>"
    return f'<figure class="chart" data-chart="{escape(chart.name)}">{picture}{caption}{table}</figure>'


def page(title: str, lead: str, sections: Sequence[Section]) -> str:
    """Return the whole file, with scripts if there are charts."""
    data, scripts, policy = _chart_data(sections), "", POLICY
    if data is not None:
        sources = [read_resource("charts.js"), read_resource("report.js")]
        digests = (base64.b64encode(hashlib.sha256(source.encode()).digest()).decode() for source in sources)
        policy += "; script-src " + " ".join(f"'sha256-{digest}'" for digest in digests)
        scripts = f'<script type="application/json" id="data">{data}</script>\n'
        scripts += "".join(f"<script>{source}</script>\n" for source in sources)
    style = page_style() + read_resource("charts.css") + read_resource("report.css")
    links = "".join(f'<li><a href="#section-{i}">{escape(part.title)}</a></li>' for i, part in enumerate(sections))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<header><h1>{escape(title)}</h1><p>{escape(lead).replace(" %", "&nbsp;%")}</p><nav aria-label="Sections"><ul>{links}</ul></nav></header>
<main id="content">
{"".join(section.html(number) for number, section in enumerate(sections))}</main>
{scripts}</body>
</html>
"""


def page_style() -> str:
    """Return the style of all pages, with the colors of the light and the dark theme."""
    light, dark = (";".join(f"{k}:{v}" for k, v in theme.variables().items()) for theme in (LIGHT, DARK))
    colors = f":root,.me-light{{{light}}}\n@media screen and (prefers-color-scheme: dark){{:root{{{dark}}}}}\n"
    return colors + read_resource("page.css")


def read_resource(name: str, package: str = "manyeyes.report") -> str:
    return files(package).joinpath(name).read_text(encoding="utf-8")


def _chart_data(sections: Sequence[Section]) -> str | None:
    """Return what the scripts draw, as JSON; None without charts."""
    charts = {chart.name: chart.to_dict() for section in sections for chart in section.charts}
    explorers = (getattr(block, "explorer", None) for section in sections for block in section.content)
    explorer = next(filter(None, explorers), None)
    data = json.dumps({"charts": charts, "explorer": explorer}, separators=(",", ":"), allow_nan=False)
    return data.replace("<", ESCAPED_LESS_THAN) if charts else None
