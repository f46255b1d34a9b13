"""What is known of the front end that a running cell came from: what it sends along with each cell."""

from __future__ import annotations

from typing import Any, cast

from IPython.core.interactiveshell import InteractiveShell


def front_end_id(shell: InteractiveShell) -> str | None:
    """The id that the front end gave the running cell, or None: a terminal, or a run that nobody looks at."""
    found = _metadata(shell).get("cellId")
    return found if isinstance(found, str) else None


def takes_new_text(shell: InteractiveShell) -> bool:
    """Whether the front end puts text into cells when the kernel asks for it (``set_next_input``).

    Colab does not (googlecolab/colabtools#1619); its cells carry ``colab.cell_id``.
    """
    return "colab" not in _metadata(shell)


def _metadata(shell: InteractiveShell) -> dict[str, Any]:
    header: Any = getattr(shell, "parent_header", None)
    metadata: Any = header.get("metadata") if isinstance(header, dict) else None
    return cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {}
