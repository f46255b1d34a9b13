"""Who holds an object: shortest paths from named roots, by ``gc`` alone; knows nothing of JAX."""

from __future__ import annotations

from jaxleak_magic.heap.closures import captured_beside as captured_beside
from jaxleak_magic.heap.find import find_holders as find_holders
from jaxleak_magic.heap.paths import Budget as Budget
from jaxleak_magic.heap.paths import Label as Label
from jaxleak_magic.heap.paths import Labeller as Labeller
from jaxleak_magic.heap.paths import Path as Path
from jaxleak_magic.heap.paths import Root as Root
from jaxleak_magic.heap.paths import SearchResult as SearchResult
from jaxleak_magic.heap.paths import Step as Step
from jaxleak_magic.heap.roots import context_roots as context_roots
from jaxleak_magic.heap.roots import default_roots as default_roots
from jaxleak_magic.heap.roots import frame_locals as frame_locals
from jaxleak_magic.heap.roots import frame_roots as frame_roots
from jaxleak_magic.heap.roots import module_roots as module_roots
from jaxleak_magic.heap.roots import namespace_roots as namespace_roots
from jaxleak_magic.heap.view import WhyAlive as WhyAlive
from jaxleak_magic.heap.view import why_alive as why_alive
