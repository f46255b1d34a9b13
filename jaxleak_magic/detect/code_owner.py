"""Whose code a code object is: the user's, JAX's, another library's, or Python's own."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Literal

CodeOwner = Literal["user", "library", "jax", "python", "own"]

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_CELL_NAMES = ("<ipython-input-", "<cell", "<stdin>", "<python-input-")


def owner_of_file(
    filename: str, jax_directories: tuple[str, ...], user_files: Callable[[], Iterable[str]] = tuple
) -> CodeOwner:
    """Whose file it is.

    Args:
        filename: ``co_filename`` of a code object.
        jax_directories: see `jaxleak_magic.detect._jax.jax_directories`.
        user_files: gives file names that are known to be the user's, whatever they look like.
    """
    if filename.startswith(jax_directories):
        return "jax"
    if filename.startswith(_PACKAGE):
        return "own"
    if filename in user_files():
        return "user"
    # Code made by exec: dataclasses, attrs, namedtuple, jaxtyping. Only names that IPython and the REPL give are cells.
    if filename.startswith("<"):
        return "user" if filename.startswith(_CELL_NAMES) else "python"
    if any(part in filename for part in _INSTALLED):
        return "library"
    if filename.startswith(_STDLIB):
        return "python"
    return "user"


_STDLIB = tuple(
    {os.path.abspath(path) + os.sep for key in ("stdlib", "platstdlib") if (path := sysconfig.get_path(key))}
)


class CodeOwners:
    """Remembers the owner of each code object by identity: hashing a code object reads all its bytes.

    Args:
        jax_directories: see `owner_of_file`.
        user_files: see `owner_of_file`.
    """

    def __init__(self, jax_directories: tuple[str, ...], user_files: Callable[[], Iterable[str]] = tuple) -> None:
        self._jax_directories = jax_directories
        self._user_files = user_files
        self._owners: dict[int, tuple[CodeType, CodeOwner]] = {}

    def __call__(self, code: CodeType) -> CodeOwner:
        """The owner of a code object."""
        known = self._owners.get(id(code))
        if known is not None:
            return known[1]
        owner = owner_of_file(code.co_filename, self._jax_directories, self._user_files)
        self._owners[id(code)] = (code, owner)  # keeps the code object: its id stays its own
        return owner

    def forget_cells(self) -> None:
        """Let go of every code object but those of installed packages, which stay as they are."""
        for key, (_, owner) in list(self._owners.items()):
            if owner not in ("jax", "library"):
                del self._owners[key]

    def of_file(self, filename: str) -> CodeOwner:
        """The owner of a file name."""
        return owner_of_file(filename, self._jax_directories, self._user_files)
