"""Reading the files that are to be checked. Every failure is one line that says what, where and what to do."""

from __future__ import annotations

import io
import json
import os
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class InputError(Exception):
    """A file that cannot be read or written, with the one line to show."""


@dataclass(frozen=True)
class Script:
    """A ``.py`` file: its path as given, its text with the line endings that it has, and its encoding."""

    path: Path
    text: str
    encoding: str


@dataclass(frozen=True)
class CodeCell:
    """A code cell of a notebook: its place in the notebook's list, its id (None in old formats), and its source."""

    index: int
    id: str | None
    source: str
    may_raise: bool = False


@dataclass(frozen=True)
class Notebook:
    """An ``.ipynb`` file: its path as given, its text, the parsed JSON, and its code cells."""

    path: Path
    text: str
    data: dict[str, Any]
    cells: tuple[CodeCell, ...]


_LEFT_OUT = {"__pycache__", "node_modules", "build", "dist", "site-packages"}
"""Names of folders that hold no source of the user's; those that begin with a dot are left out too."""


def files_of(words: Sequence[str]) -> list[str]:
    """The files that the words of the command line name: a folder stands for every ``.py`` and ``.ipynb`` below it.

    What is no folder stays as it is, also where there is no such file. Raises InputError for a folder without any file.
    """
    found: list[str] = []
    for word in words:
        if not os.path.isdir(word):
            found.append(word)
            continue
        below = sorted(_files_below(Path(word)))
        if not below:
            raise InputError(f"{word}: a folder with no .py or .ipynb file in it")
        found += map(str, below)
    return list(dict.fromkeys(found))


def _files_below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not (name.startswith(".") or name in _LEFT_OUT)]
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        yield from (Path(parent, name) for name in files if name.endswith((".py", ".ipynb")) and name[0] != ".")


def read_input(path: Path) -> Script | Notebook:
    """Read a file by its ending. Raises InputError."""
    if path.suffix == ".ipynb":
        return read_notebook(path)
    if path.suffix == ".py":
        return read_script(path)
    raise InputError(f"{path}: neither a .py nor an .ipynb file; rename it, or save the cell as a .py file")


def read_script(path: Path) -> Script:
    """Read a Python file in UTF-8 or in the encoding that its first lines declare. Raises InputError."""
    data = _read_bytes(path)
    encoding = "utf-8"
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return Script(path, data.decode(encoding), encoding)
    except SyntaxError as error:  # an unknown encoding, or one that does not fit the first lines
        raise InputError(f"{path}: not readable as Python source, {error.msg or error}; save it as UTF-8") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not valid {encoding}; save the file as UTF-8") from None


def read_notebook(path: Path) -> Notebook:
    """Read a notebook of format 4. Raises InputError."""
    data = _read_bytes(path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: byte {error.start} is not valid UTF-8; save the notebook again as UTF-8") from None
    try:
        notebook = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f" (line {error.lineno})" if isinstance(error, json.JSONDecodeError) else ""
        raise InputError(f"{path}: not a notebook, its text is not JSON{where}; save it again from Jupyter") from None
    cells = notebook.get("cells") if isinstance(notebook, dict) else None
    if not isinstance(cells, list):
        old = isinstance(notebook, dict) and "worksheets" in notebook
        what = "a notebook of format 3" if old else "not a notebook, it has no list of cells"
        raise InputError(f"{path}: {what}; open it in Jupyter and save it, which writes format 4")
    language = _language(notebook)
    if language.lower() not in ("python", "ipython", "python3"):
        raise InputError(f"{path}: a notebook in {language}; only Python ones can be checked")
    return Notebook(path, text, notebook, tuple(_code_cells(path, cells)))


def _language(notebook: dict[str, Any]) -> str:
    """The language that a notebook says it is in; Python where it says none."""
    metadata = notebook.get("metadata")
    for part, key in (("kernelspec", "language"), ("language_info", "name")):
        found = metadata.get(part) if isinstance(metadata, dict) else None
        name = found.get(key) if isinstance(found, dict) else None
        if isinstance(name, str):
            return name
    return "python"


def _code_cells(path: Path, cells: list[Any]) -> list[CodeCell]:
    found: list[CodeCell] = []
    for index, cell in enumerate(cells):
        if not isinstance(cell, dict) or cell.get("cell_type") != "code":
            continue
        source = cell.get("source", "")
        if isinstance(source, list) and all(isinstance(line, str) for line in source):
            source = "".join(source)
        if not isinstance(source, str):
            raise InputError(f"{path}: cell {index} has no text as its source; save the notebook again from Jupyter")
        own_id = cell.get("id")
        metadata = cell.get("metadata")
        tags = metadata.get("tags") if isinstance(metadata, dict) else None
        may_raise = isinstance(tags, list) and "raises-exception" in tags
        found.append(CodeCell(index, own_id if isinstance(own_id, str) else None, source, may_raise))
    return found


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise InputError(f"{path}: a folder; name the .py or .ipynb file in it") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read, {error.strerror or error}") from None
    except ValueError as error:  # a null byte in the name
        raise InputError(f"{path}: not a file name, {error}") from None
