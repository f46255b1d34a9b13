"""Colours and the style sheet of the HTML report, scoped to one output."""

from __future__ import annotations

import functools
import re
from pathlib import Path

PALETTE = {
    "bg": ("#ffffff", "#111417"),
    "fg": ("#1f2328", "#e3e6ea"),
    "mut": ("#59636e", "#9aa4ae"),
    "line": ("#d0d7de", "#3a424b"),
    "soft": ("#f5f7f9", "#1b2026"),
    "red": ("#b3261e", "#ff8f86"),
    "redbg": ("#fdeeed", "#3a1f1e"),
    "grn": ("#116329", "#7ee09a"),
    "grnbg": ("#e8f5ec", "#16301e"),
    "amb": ("#7a4f00", "#f2c66d"),
    "ambbg": ("#fff5df", "#33290f"),
    "blu": ("#0b57d0", "#8ab4f8"),
}
"""Name to (light, dark). Each text colour reaches WCAG AA (4.5 : 1) on ``bg``, ``soft`` and its own background."""

_FRONT_ENDS = {
    "bg": ("--jp-layout-color0", "--vscode-editor-background"),
    "fg": ("--jp-content-font-color1", "--vscode-editor-foreground"),
    "line": ("--jp-border-color2", "--vscode-widget-border"),
}


@functools.cache
def _read(file: str) -> str:
    return Path(__file__).with_name(file).read_text(encoding="utf-8")


def page_sheet() -> str:
    """The style sheet of a whole page around reports."""
    return minified(_read("page.css"))


def style_sheet(scope: str) -> str:
    """The style sheet for elements under the selector ``scope``, without superfluous white space.

    Args:
        scope: a selector that only this output's root matches, twice as specific as a class so that the front end's
            own rules for rendered HTML lose.
    """
    variables = ""
    for name, (light, dark) in PALETTE.items():
        value = f"light-dark({light},{dark})"
        for variable in reversed(_FRONT_ENDS.get(name, ())):
            value = f"var({variable},{value})"
        variables += f"--{name}:{value};"
    return minified(_read("report.css").replace("VARIABLES", variables).replace("SCOPE", scope))


def minified(sheet: str) -> str:
    """A style sheet without comments, line breaks and superfluous blanks."""
    sheet = re.sub(r"/\*.*?\*/|\s+", " ", sheet, flags=re.DOTALL)
    sheet = re.sub(r" ?([{};]) ?|(?<=[:,]) ", lambda m: m[1] or "", sheet).replace(";}", "}").strip()
    return re.sub(r"(?<=[{},])& ", "", sheet)
