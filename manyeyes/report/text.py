"""Text for pages, charts and tables: safe to print, short enough for its room, and numbers as people read them."""

import math
from collections.abc import Sequence
from html import escape as escape_markup
from statistics import fmean, stdev
from unicodedata import east_asian_width

SMALL = (1e-8, 5e-4)  # fractions that have two significant digits instead of one decimal
NARROW, WIDE = set("fijlrt|!.,:;'()[] "), set("mwMW@%—")
NARROW_EM, NORMAL_EM, UPPER_EM, WIDE_EM = 0.4, 0.62, 0.7, 1.0  # of a wide sans-serif such as DejaVu Sans


def printable(text: str) -> str:
    """Return the text with a replacement character for everything that is not printable."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def escape(text: str) -> str:
    """Return the text as markup, also within a quoted attribute."""
    return escape_markup(printable(text))


def format_value(value: float | None, percent: bool = False) -> str:
    """Return a number with about four digits, or a fraction as a percentage; empty for None."""
    if value is None:
        return ""
    if percent:
        return f"{100 * value:.2g} %" if SMALL[0] < abs(value) < SMALL[1] else f"{100 * value:.1f} %"
    if not math.isfinite(value):
        return "not finite"
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_mean(values: Sequence[float], percent: bool = False) -> str:
    """Return the mean of some numbers, and the standard deviation of several."""
    if not values:
        return ""
    mean = format_value(fmean(values), percent)
    if len(values) == 1:
        return mean
    return f"{mean.removesuffix(' %')} ± {format_value(stdev(values), percent)}"


def format_duration(seconds: float) -> str:
    """Return a length of time in the largest unit of which there are at least two: `2.0 h`."""
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.1f} {unit}"
    return f"{1000 * seconds:.3g} ms" if 0 < seconds < 1 else f"{seconds:.3g} s"


def text_width(text: str, font_size: float = 12) -> float:
    """Return about how many pixels wide a line of text is; rather too wide than too narrow."""
    return font_size * sum(map(_char_width, text))


def shorten(text: str, room: float, font_size: float = 12) -> str:
    """Return the text, or as much of its start as fits, with an ellipsis."""
    if text_width(text, font_size) <= room:
        return text
    end = next((n for n in range(len(text)) if text_width(f"{text[: n + 1]}…", font_size) > room), 0)
    return f"{text[:end]}…"


def wrap(text: str, room: float, font_size: float = 12) -> list[str]:
    """Return the lines of a text; a word that is too long for a line is shortened."""
    lines = [""]
    for word in text.split(" "):
        longer = f"{lines[-1]} {word}".lstrip()
        if text_width(longer, font_size) <= room:
            lines[-1] = longer
        else:
            lines += [shorten(word, room, font_size)]
    return [line for line in lines if line]


def _char_width(character: str) -> float:
    if character in NARROW:
        return NARROW_EM
    if character in WIDE or east_asian_width(character) in "WF":
        return WIDE_EM
    return UPPER_EM if character.isupper() else NORMAL_EM
