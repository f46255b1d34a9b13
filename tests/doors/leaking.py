"""Small sources for the doors' tests."""

from __future__ import annotations

import json
from pathlib import Path

LEAKS = """\
import jax
import jax.numpy as jnp

kept = []


def double(x):
    y = 2 * x
    kept.append(y)
    return y


jax.jit(double)(jnp.arange(3.0))
"""

CLEAN = """\
import jax
import jax.numpy as jnp


def double(x):
    return 2 * x


jax.jit(double)(jnp.arange(3.0))
"""

MENDABLE = """\
import jax
import jax.numpy as jnp


class Learner:
    def __init__(self, schedule):
        self.schedule = schedule


jax.tree_util.register_pytree_node(Learner, lambda learner: ((), learner), lambda learner, _: learner)


def make_learner(rate):
    def schedule(step):
        return rate * 0.99**step

    return Learner(schedule)


learners = jax.vmap(make_learner)(jnp.array([0.1, 0.3, 1.0]))
"""
"""A closure over the mapped rate in the static part of a pytree: a leak with a rewrite that is checked."""


KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def notebook(path: Path, *sources: str, **extra: object) -> Path:
    """Write a notebook of code cells with the ids ``cell-0``, ``cell-1``, ..."""
    cells = [
        {"cell_type": "code", "id": f"cell-{i}", "metadata": {}, "execution_count": None, "outputs": [], "source": text}
        for i, text in enumerate(sources)
    ]
    data = {"cells": cells, "metadata": KERNEL, "nbformat": 4, "nbformat_minor": 5, **extra}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
