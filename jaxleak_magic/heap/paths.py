"""Plain data of a referrer search: roots and budgets that go in, paths of readable steps that come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

StepKind = Literal[
    "closure_cell",
    "attribute",
    "item",
    "key",
    "argument_default",
    "bound_method",
    "partial",
    "generator",
    "frame_local",
    "global",
    "class_attribute",
    "weak",
    "pytree_aux",
    "cache",
    "other",
]
RootKind = Literal["namespace", "module", "frame", "history", "thread", "other"]

NAMESPACE, USER_MODULE, USER_FRAME, HISTORY, LIBRARY, JAX, PYTHON = 0, 1, 2, 3, 5, 6, 7
"""Usual ranks of roots: lower is preferred."""

RANK_OF_OWNER: Mapping[str, int] = {
    "user": USER_MODULE,
    "library": LIBRARY,
    "ipython": LIBRARY,
    "jax": JAX,
    "python": PYTHON,
}
"""Rank of a module root by the word that an ``owner_of`` callable gives."""

OwnerOf = Callable[[str | None, str | None], str]
"""``owner_of(module, filename)`` gives ``"user"``, ``"library"``, ``"jax"``, ``"python"`` or ``"ipython"``."""


@dataclass(frozen=True, slots=True)
class Root:
    """A named object from which things are reached; the only live object of this model, given by the caller.

    Attributes:
        obj: a namespace dict, a module's ``__dict__``, a dict of a frame's locals, ``Out``, a ``contextvars.Context``.
        name: ``""`` for the user's namespace, else the module's name, ``"Out"``, ``"f()"``.
        kind: what it is.
        rank: lower is preferred.
        filename: for frames, the file of the code.
        line: for frames, the first line of the code.
        qualname: for frames, the qualified name of the code.
        thread: for frames, the thread's name if it is not the searching thread.
    """

    obj: object = field(repr=False)
    name: str
    kind: RootKind
    rank: int = NAMESPACE
    filename: str | None = None
    line: int | None = None
    qualname: str | None = None
    thread: str | None = None


@dataclass(frozen=True)
class Step:
    """One readable step of a path: how ``holder`` holds the thing before it. Steps run from the target to the root.

    Attributes:
        kind: what holds what.
        name: the bare variable (``rate``), attribute (``h``), index (``[0]``), key (``['k']``) or global, or None.
        type: type name of the holder, with its module unless that is ``builtins`` or ``__main__``.
        module: where the function, the class, or the holder's type was defined.
        holder: short readable name of the holder: ``schedule()``, ``Learner``, ``list``, ``module numpy``.
        filename: file of the code of a function, generator or frame, or of the methods of a class or instance.
        line: first line of that code (of the class itself where Python 3.13 knows it).
        qualname: qualified name of that code or class.
        node: the same number wherever the same holder appears in one `SearchResult`.
        raw: the hops folded into this step, as text, nearest to the target first.
        detail: further facts, e.g. ``{"kept_by": "traceback of a stored exception", "exception": "ValueError"}``.
    """

    kind: StepKind
    name: str | None
    type: str
    module: str | None
    holder: str
    filename: str | None = None
    line: int | None = None
    qualname: str | None = None
    node: int = 0
    raw: tuple[str, ...] = ()
    detail: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Path:
    """Steps from a target to a root.

    Attributes:
        steps: nearest to the target first; the last one names the variable of the root.
        root_kind: the root's kind, or None for an incomplete path.
        root_name: the root's name, or None for an incomplete path.
        root_rank: the root's rank, or None for an incomplete path.
        complete: False where the last holder is held by nothing that ``gc`` can see.
        hops: number of raw references from the root to the target.
    """

    steps: tuple[Step, ...]
    root_kind: RootKind | None
    root_name: str | None
    root_rank: int | None
    complete: bool
    hops: int


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        paths: for every target its paths, best first; possibly none.
        finished: False where a budget ended the search.
        unfinished_reason: what could not be finished, as a sentence, or None.
        invisible: indices of targets that have no complete path and more references than ``gc`` can account for.
        passes: number of walks over the heap that were made, for benchmarks.
    """

    paths: tuple[tuple[Path, ...], ...]
    finished: bool = True
    unfinished_reason: str | None = None
    invisible: frozenset[int] = frozenset()
    passes: int = 0


@dataclass(frozen=True)
class Budget:
    """Limits of a search, and the two figures that steer it.

    Attributes:
        seconds: time after which a search stops and says so.
        memory: bytes that the snapshot of the heap's edges may take.
        nodes: holders that may be recorded.
        forward: objects visited from the namespace, and again from the targets.
        newest: objects of the heap that are read first, of those tracked last: leaked things and their holders are new.
        passes: walks over the heap, in terms of a walk for a single object, before a snapshot is read for the rest.
        width: how many of a crowd of holders are followed first; and of one walk where there is no NumPy.
        patience: further levels after every target is reached from one of the user's roots, but not from the best.
        extra: further levels for second paths, after every target is reached from a root of the best rank.
    """

    seconds: float = 20.0
    memory: int = 1 << 30
    nodes: int = 1_000_000
    forward: int = 10_000
    newest: int = 20_000
    passes: float = 1.5
    width: int = 48
    patience: int = 2
    extra: int = 1


@dataclass(frozen=True)
class Label:
    """What a labeller says of one reference: the step's kind, its bare name, the holder's name if unusual."""

    kind: StepKind
    name: str | None = None
    holder: str | None = None
    detail: Mapping[str, str] = field(default_factory=dict[str, str])


Labeller = Callable[[object, object], Label | None]
"""``labeller(holder, child)`` names a reference that it knows, and returns None for the others."""
