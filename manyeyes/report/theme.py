"""The colors of charts and pages. Series are distinguishable with any color vision, and have a contrast of 3 to 1."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Theme:
    """The colors of text, background and lines, and those of series."""

    ink: str
    soft: str
    paper: str
    grid: str
    axis: str
    series: tuple[str, ...]

    def variables(self) -> dict[str, str]:
        colors = {f"--{name}": color for name, color in vars(self).items() if name != "series"}
        return colors | {f"--color-{i}": color for i, color in enumerate(self.series)}


LIGHT = Theme(
    *("#1b1f24", "#57606a", "#ffffff", "#e8ecf0", "#8c959f"),
    series=("#0072b2", "#d55e00", "#00855f", "#b8528f", "#9a7200", "#3f8fd0", "#30363d", "#7a5cc8"),
)
DARK = Theme(
    *("#e6edf3", "#a3adb8", "#14181d", "#272d34", "#6b7580"),
    series=("#4ba9e8", "#ff8a4c", "#35c496", "#e795c4", "#e5b53a", "#9fd2ff", "#d5dce3", "#b9a3f5"),
)
PAGE = Theme(  # whatever the theme of the page is
    *("var(--ink)", "var(--soft)", "var(--paper)", "var(--grid)", "var(--axis)"),
    series=tuple(f"var(--color-{i})" for i in range(len(LIGHT.series))),
)
