"""What the documentation takes from elsewhere: the README as its first page, the notebooks, and tables of options.

The options are told once, in the parsers. `fill_tables` writes them between ``<!-- options: NAME -->`` and
``<!-- end -->``: at build time into the pages, and by ``UPDATE_GOLDEN=1 pytest tests/docs`` into the README.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parent.parent

_TABLE = re.compile(r"(<!-- options: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)


def fill_tables(text: str) -> str:
    """The text with each table of options as the parsers have it now. Raises KeyError for a name that is none."""
    return _TABLE.sub(lambda match: match[1] + option_table(match[2]) + match[3], text)


def option_table(name: str) -> str:
    """The options of ``%%leakcheck``, of ``jaxleak check`` and its like, or of ``pytest``, as a Markdown table."""
    rows = [f"| {_spelling(action)} | {_help(action)} |" for action in _PARSERS[name]() if action.option_strings]
    return "\n".join([f"| option of `{name}` | |", "|---|---|", *rows, ""])


def _leakcheck() -> Iterable[argparse.Action]:
    from jaxleak_magic.magics.options import make_parser

    return make_parser()._actions


def _command(name: str) -> Callable[[], Iterable[argparse.Action]]:
    def actions() -> Iterable[argparse.Action]:
        from jaxleak_magic.cli import make_parser

        commands: Any = next(action for action in make_parser()._actions if isinstance(action.choices, dict))
        return commands.choices[name]._actions

    return actions


def _pytest() -> Iterable[argparse.Action]:
    from jaxleak_magic.pytest_plugin import pytest_addoption

    parser = argparse.ArgumentParser(add_help=False)

    class Group:
        addoption = staticmethod(parser.add_argument)

    class Options:
        @staticmethod
        def getgroup(*_: str) -> type[Group]:
            return Group

    pytest_addoption(Options)  # type: ignore[arg-type]
    return parser._actions


_PARSERS: dict[str, Callable[[], Iterable[argparse.Action]]] = {
    "%%leakcheck": _leakcheck,
    "jaxleak check": _command("check"),
    "jaxleak fix": _command("fix"),
    "jaxleak explain": _command("explain"),
    "pytest": _pytest,
}


def _spelling(action: argparse.Action) -> str:
    value = f" {action.metavar}" if action.metavar else ""
    shown = ", ".join(f"`{option}{value}`" for option in action.option_strings)
    return shown + (f" {', '.join(f'`{choice}`' for choice in action.choices)}" if action.choices else "")


def _help(action: argparse.Action) -> str:
    return (action.help or "").replace("|", "\\|").replace("%%", "%")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the notebooks."""
    from mkdocs.structure.files import File

    for notebook in sorted((REPOSITORY / "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{notebook.name}", abs_src_path=str(notebook)))
    return files


on_files.mkdocs_priority = 100  # type: ignore[attr-defined]  # before the plugin that makes pages of notebooks


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The README for the first page, tables of options, and links to the notebooks as they are from here."""
    if page.file.src_uri == "index.md":
        markdown = (REPOSITORY / "README.md").read_text(encoding="utf-8").replace("docs/", "")
    return fill_tables(markdown.replace("](../notebooks/", "](notebooks/"))
