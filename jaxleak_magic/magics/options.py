"""The options of ``%%leakcheck``, read from its line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

MAGIC = "leakcheck"
_TAKES_VALUE = {"-o", "--output", "--fix"}


@dataclass(frozen=True)
class MagicOptions:
    """What the magic's line asks for.

    Attributes:
        output: name under which the report is stored, or None.
        raise_leaks: raise LeakError after the report where a leak was found.
        text: show plain text only.
        quiet: show nothing.
        keep_caches: do not trace functions anew that were compiled earlier.
        locate: run the cell a second time where the stored line cannot be determined.
        fast: only count the traces that outlive the cell.
        notes: add notes on what is no leak and still surprises.
        last: explain the exception that was raised last, and run nothing.
        fix: number of the fix by which the running cell is to be replaced, or None.
        help: show the help and run nothing.
    """

    output: str | None = None
    raise_leaks: bool = False
    text: bool = False
    quiet: bool = False
    keep_caches: bool = False
    fast: bool = False
    locate: bool = False
    notes: bool = True
    last: bool = False
    fix: int | None = None
    help: bool = False


def make_parser() -> MagicArgumentParser:
    """The parser of the magic's options; the help and the docstring are made of it."""
    parser = MagicArgumentParser(f"%{MAGIC}", add_help=False)  # its formatter puts another % before it
    parser.allow_abbrev = False  # ``--fi 1`` would not be found again when the fix takes ``--fix 1`` out
    parser.add_argument(
        "-o", "--output", metavar="NAME", help="keep the report as NAME: NAME.leaks, NAME.graph, NAME.to_json(), ..."
    )
    parser.add_argument(
        "--raise",
        dest="raise_leaks",
        action="store_true",
        help='after the report, raise LeakError if there is a leak: "Run All", nbclient and papermill stop',
    )
    parser.add_argument("--text", action="store_true", help="show plain text only")
    parser.add_argument("-q", "--quiet", action="store_true", help="show nothing (for use with -o or --raise)")
    parser.add_argument(
        "--keep-caches",
        action="store_true",
        help="do not trace functions anew that were compiled earlier: quicker, and blind to their leaks",
    )
    parser.add_argument(
        "--fast",
        action="store_true",
        help="only count what outlives the cell: costs next to nothing, and is blind to functions compiled earlier",
    )
    parser.add_argument(
        "--locate",
        action="store_true",
        help="where the line that stored a value cannot be determined: run the cell a second time and watch",
    )
    parser.add_argument(
        "--no-notes", dest="notes", action="store_false", help="no notes on what is no leak and still surprises"
    )
    parser.add_argument("--last", action="store_true", help="line form: explain the last exception, run nothing")
    parser.add_argument(
        "--fix",
        type=int,
        metavar="N",
        help="replace this cell by its text after fix N of the report (Ctrl+Z takes it back)",
    )
    parser.add_argument("-h", "--help", action="store_true", help="show this help and run nothing")
    return parser


def parse_options(line: str) -> MagicOptions:
    """Options of ``%%leakcheck``'s line. Raises IPython's UsageError."""
    try:
        options = MagicOptions(**vars(make_parser().parse_argstring(line)))
    except (UsageError, ValueError) as error:  # ValueError: an open quotation mark
        raise UsageError(f"%%{MAGIC}: {error}; %%{MAGIC} -h lists the options") from None
    if options.output is not None and not options.output.isidentifier():
        raise UsageError(f"%%{MAGIC}: -o needs a variable name, and {options.output!r} is none")
    return options


def parse_explain_options(line: str) -> MagicOptions:
    """Options of ``%%leakexplain``'s line, some of those of ``%%leakcheck``. Raises IPython's UsageError."""
    options = parse_options(line)
    if options != MagicOptions(output=options.output, text=options.text, quiet=options.quiet):
        raise UsageError("%%leakexplain takes -o NAME, --text and -q only: it runs nothing")
    return options


def split_expression(line: str) -> tuple[MagicOptions, str]:
    """Options and expression of ``%leakcheck [options] EXPR``; ``--`` ends the options. Raises UsageError."""
    rest, taken = line.strip(), list[str]()
    while rest.startswith("-"):
        word, rest = _first_word(rest)
        if word == "--":
            break
        taken.append(word)
        if word in _TAKES_VALUE:
            value, rest = _first_word(rest)
            taken.append(value)
    return parse_options(" ".join(taken)), rest


def help_text() -> str:
    """The help, with both forms of the magic."""
    usage = make_parser().format_help().removeprefix("::").strip("\n")
    return f"{usage}\n\nLine form: %{MAGIC} [options] EXPR checks one expression and gives its value."


def _first_word(text: str) -> tuple[str, str]:
    match = re.match(r"(\S*)\s*", text)
    assert match is not None
    return match[1], text[match.end() :]
