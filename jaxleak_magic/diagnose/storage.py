"""The statement that put a value where it is still kept, and the user's name for the value there.

Read from the referrer path and the syntax of the user's texts, never from a second run. The path is walked from the
tracer outwards: a holder that was made around the value (by ``__init__``, by a literal, by ``def``) is passed over, the
first one that was written into is where the value escaped. Where no statement fits, or several do, the answer is None.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from jaxleak_magic.diagnose.model import Place
from jaxleak_magic.diagnose.syntax import FunctionNode, Syntax, Write
from jaxleak_magic.diagnose.trace_stack import Places
from jaxleak_magic.heap import Step

_CONSTRUCTORS = frozenset({"__init__", "__new__", "__post_init__", "__setstate__", "tree_unflatten"})
_CONTAINERS = frozenset({"item", "key", "weak"})


@dataclass(frozen=True)
class Storage:
    """How a value came to be kept.

    Attributes:
        place: the statement, or None.
        how: ``"attribute"``, ``"item"``, ``"call"``, ``"set"``,
            ``"global"``, ``"nonlocal"``, ``"memo"``, ``"returned"``,
            ``"closure"``, ``"library"`` or ``"unknown"``.
        variable: the user's name for the value, or None.
        guarded: whether the write runs only where the value is not there yet (a memo).
        filename: ``co_filename`` of the text that the statement stands in, or None.
        statement: the statement's source, or None.
    """

    place: Place | None
    how: str
    variable: str | None
    guarded: bool = False
    filename: str | None = None
    statement: ast.stmt | None = None


@dataclass(frozen=True)
class _Candidate:
    filename: str
    syntax: Syntax
    write: Write


class StorageFinder:
    """Finds the storing statement of a path.

    Args:
        places: places and syntax of the user's texts.
        filenames: ``co_filename`` of every text that may hold the statement, the likeliest first.
        created: place where the value was made, or None.
        created_file: its ``co_filename``, or None.
        traced: (filename, function) of the function whose trace ended, or None.
        escaped: (filename, line) of the top-level statement whose transform had ended, or None.
        from_library: whether library code that the user called made the value.
    """

    def __init__(
        self,
        places: Places,
        filenames: Sequence[str],
        created: Place | None,
        created_file: str | None,
        traced: tuple[str, FunctionNode] | None,
        escaped: tuple[str, int] | None = None,
        from_library: bool = False,
    ) -> None:
        self._places = places
        self._from_library = from_library
        self._escaped = escaped
        self._filenames = list(dict.fromkeys(filenames))
        self._created = created
        self._created_file = created_file
        self._traced = traced

    def find(self, steps: Sequence[Step], given: bool = False) -> Storage:
        """The storage of a path.

        Args:
            steps: tracer to root.
            given: the value was handed to a transform or a solver by a closure, and nothing keeps it.
        """
        undecided: Storage | None = None
        for index, step in enumerate(steps):
            candidates = self._writes_into(steps, index, step)
            found = self._choose(candidates)
            if found is not None:
                return self._storage(found, steps, index)
            if candidates and undecided is None:
                undecided = self._undecided(candidates, steps, index)
            memo = self._decorated_memo(step)
            if memo is not None:
                return memo
            if step.kind == "global":
                break
        return undecided or self._returned(steps, given)

    def _undecided(self, candidates: list[_Candidate], steps: Sequence[Step], index: int) -> Storage:
        """Several statements may have stored the value: how is known, and its name where all of them agree."""
        every = [self._storage(each, steps, index) for each in candidates]
        names = {each.variable for each in every}
        return Storage(None, every[0].how, names.pop() if len(names) == 1 else None)

    def _writes_into(self, steps: Sequence[Step], index: int, step: Step) -> list[_Candidate]:
        if step.kind in ("attribute", "class_attribute"):
            found = self._writes("attribute", bare(step.name))
            return [c for c in found if not self._constructs(c)]
        if step.kind in _CONTAINERS:
            names = _container_names(steps, index)
            if not names:
                return []
            found = [
                c for c in self._writes("item", *names) + self._writes("call", *names) if c.write.function is not None
            ]
            key = bare(step.name)
            exact = [c for c in found if c.write.key is not None and c.write.key == key]
            return exact or found
        if step.kind == "closure_cell":
            return [c for c in self._writes("name", bare(step.name)) if _declares(c, ast.Nonlocal)]
        if step.kind == "global":
            found = [c for c in self._writes("name", bare(step.name)) if _declares(c, ast.Global)]
            if step.holder.startswith("module "):
                found += [c for c in self._writes("attribute", bare(step.name)) if not self._constructs(c)]
            return found
        if step.kind == "other" and step.name:  # a context variable, a queue: written through a method
            return [c for c in self._writes("call", bare(step.name)) if c.write.function is not None]
        return []

    def _writes(self, kind: str, *targets: str | None) -> list[_Candidate]:
        wanted = {t for t in targets if t}
        found: list[_Candidate] = []
        for filename in self._filenames:
            syntax = self._places.syntax(filename)
            found += [
                _Candidate(filename, syntax, write)
                for write in syntax.writes
                if write.kind == kind and write.target in wanted and not isinstance(write.value, ast.Constant)
            ]
        return found

    def _constructs(self, candidate: _Candidate) -> bool:
        """Whether the write builds a new object, or runs outside every function, where no tracer can be stored."""
        function = candidate.write.function
        if function is None:
            return True
        return isinstance(function, ast.FunctionDef) and function.name in _CONSTRUCTORS

    def _choose(self, found: list[_Candidate]) -> _Candidate | None:
        """The one statement that fits; among several the ones near the value's creation, else None."""
        if len(found) <= 1:
            return found[0] if found else None
        statements = {(c.filename, c.write.line) for c in found}
        if len(statements) == 1:
            return found[0]
        if self._created is not None:
            own = [c for c in found if c.filename == self._created_file]
            exact = [c for c in own if self._covers(c, self._created.line)]
            if exact:
                return exact[0]
            near = [c for c in own if c.write.function is not None and _contains(c.write.function, self._created.line)]
            after = [c for c in near if c.write.line >= self._created.line]
            if after or len({c.write.line for c in near}) == 1:
                return (after or near)[0]
        return None

    def _covers(self, candidate: _Candidate, line: int) -> bool:
        statement = candidate.syntax.statement_at(candidate.write.line)
        return statement is not None and statement.lineno <= line <= (statement.end_lineno or statement.lineno)

    def _storage(self, found: _Candidate, steps: Sequence[Step], index: int) -> Storage:
        write = found.write
        how = write.kind
        if write.method == "set":
            how = "set"
        elif write.kind == "name":
            how = "global" if steps[index].kind == "global" else "nonlocal"
        place = self._place(found.filename, write.line, write.column, write.function)
        statement = found.syntax.statement_at(write.line)
        guarded = _guarded(found.syntax, statement, write)
        return Storage(place, how, self._variable(steps, index, write), guarded, found.filename, statement)

    def _variable(self, steps: Sequence[Step], index: int, write: Write) -> str | None:
        first = steps[0]
        inside = [
            s for s in steps[: index + (write.kind == "name")] if s.kind == "closure_cell" and self._is_user(s.filename)
        ]
        if inside and first.kind in ("closure_cell", "item"):
            return bare(inside[0].name)
        if index > 0 and first.kind == "attribute" and first.name and not _library_step(first, self._places):
            return bare(first.name)
        created = self.created_target()
        if created is not None and write.value is not None and _mentions(write.value, created):
            return created
        if write.value_name is not None and (index == 0 or not inside):
            return write.value_name
        if index > 0:
            named = self._first_user_name(steps[:index], write)
            if named is not None:
                return named
        if write.kind == "item" and write.key is not None and write.key.isidentifier():
            return write.key
        return write.target

    def _first_user_name(self, steps: Sequence[Step], write: Write) -> str | None:
        """Name of the value inside what was stored: an argument of a partial, the target of the creating statement."""
        if isinstance(write.value, ast.Call):
            names = [a.id for a in write.value.args if isinstance(a, ast.Name)]
            names += [k.value.id for k in write.value.keywords if isinstance(k.value, ast.Name)]
            created = self.created_target()
            if created in names:
                return created
            if len(names) == 1:
                return names[0]
        return self.created_target()

    def created_target(self) -> str | None:
        """The single name that the creating statement assigns, or None."""
        if self._created is None or self._created_file is None:
            return None
        statement = self._places.syntax(self._created_file).statement_at(self._created.line)
        if (
            isinstance(statement, ast.Assign)
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        ):
            return statement.targets[0].id
        return None

    def _decorated_memo(self, step: Step) -> Storage | None:
        """``cached_property`` fills an attribute, ``lru_cache`` its own table: the decorated function stores."""
        if step.kind == "attribute":
            wanted, by_name = ("cached_property",), bare(step.name)
        elif step.kind == "cache":
            wanted, by_name = (
                ("lru_cache", "cache"),
                bare(step.qualname.rpartition(".")[2] if step.qualname else step.name),
            )
        else:
            return None
        for filename in self._filenames:
            for function in self._places.syntax(filename).functions:
                if isinstance(function, ast.Lambda) or function.name != by_name:
                    continue
                for decorator in function.decorator_list:
                    name = decorator.func if isinstance(decorator, ast.Call) else decorator
                    last = name.attr if isinstance(name, ast.Attribute) else getattr(name, "id", "")
                    if last in wanted:
                        line = function.lineno if last == "cached_property" else decorator.lineno
                        variable = by_name if last == "cached_property" else self.created_target() or by_name
                        place = self._place(filename, line, function.col_offset, function)
                        return Storage(place, "memo", variable, True, filename)
        return None

    def _returned(self, steps: Sequence[Step], given: bool) -> Storage:
        """No write fits: the value left its function as, or inside, what the function returned."""
        if steps and steps[-1].kind == "global" and all(step.kind in ("item", "key") for step in steps[:-1]):
            return self._in_plain_containers(steps)
        closure = next((s for s in steps if s.kind == "closure_cell" and self._is_user(s.filename)), None)
        variable = bare(steps[0].name) if steps and steps[0].kind == "closure_cell" and closure is steps[0] else None
        returned = None if given or not self._can_come_by_return(steps) else self._return_of_traced()
        if closure is not None and (returned is None or steps[-1].kind != "global"):
            escape = self._closure_escape(closure, given)
            if escape is not None:
                return Storage(escape, "closure", variable or bare(closure.name), filename=closure.filename)
        if closure is not None:
            variable = variable or bare(closure.name)
        variable = variable or self._named_on_the_way(steps)
        if returned is None:
            return Storage(None, "unknown", variable)
        return Storage(returned, "returned", variable, filename=self._traced[0] if self._traced else None)

    def _in_plain_containers(self, steps: Sequence[Step]) -> Storage:
        """A transform replaces what it returns in lists, tuples and dicts, so the value came there in another way."""
        if self._from_library:
            return Storage(self._created, "library", None)
        variable = self._named_on_the_way(steps)
        if self._escaped is None:
            return Storage(None, "unknown", variable)
        filename, line = self._escaped
        later = [node for node in self._places.syntax(filename).tree.body if node.lineno > line]
        binding = [node for node in later if _binds(node, steps[-1].name)]
        return Storage(self._of(filename, binding[0]) if len(binding) == 1 else None, "unknown", variable)

    def _can_come_by_return(self, steps: Sequence[Step]) -> bool:
        """Whether what the transform returned can be kept under the root's name: a later statement must speak of it."""
        root = steps[-1] if steps else None
        if root is None or root.kind != "global" or not root.name or self._escaped is None:
            return True
        filename, line = self._escaped
        syntax = self._places.syntax(filename)
        own = [node for node in syntax.tree.body if (node.end_lineno or node.lineno) >= line]
        names = (n for node in own for n in ast.walk(node) if isinstance(n, ast.Name))
        return any(n.id == root.name for n in names)

    def _named_on_the_way(self, steps: Sequence[Step]) -> str | None:
        created = self.created_target()
        if created is not None:
            return created
        if self._traced is not None:
            arguments = _parameters(self._traced[1])
            at_definition = self._created is not None and self._created.line == self._traced[1].lineno
            if len(arguments) == 1 and at_definition:
                return arguments[0]
        first = next((s for s in steps if s.kind == "attribute" and not _library_step(s, self._places)), None)
        return bare(first.name) if first is not None else None

    def _closure_escape(self, step: Step, given: bool) -> Place | None:
        """The last statement of the enclosing function that passes the closure on: return, store or call."""
        if step.filename is None or step.line is None:
            return None
        name = (step.qualname or "").rpartition(".")[2]
        function = self._places.definition(step.filename, step.line, name)
        if function is None:
            return None
        syntax = self._places.syntax(step.filename)
        if isinstance(function, ast.Lambda):
            statement = syntax.statement(function)
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                return self._last_use(step.filename, syntax, statement.targets[0].id, statement, given) or self._of(
                    step.filename, statement
                )
            return self._of(step.filename, statement) if statement is not None else None
        return self._last_use(step.filename, syntax, function.name, function, given)

    def _last_use(self, filename: str, syntax: Syntax, name: str, definition: ast.stmt, given: bool) -> Place | None:
        around = syntax.function_around(definition)
        if around is None:
            return None
        uses = [
            use
            for use in syntax.loads(name, around)
            if use.lineno > definition.lineno
            and not _is_inside(use, definition, syntax)
            and not _only_called(use, syntax)
        ]
        if not uses:
            return None
        statement = syntax.statement(uses[-1])
        target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
        if isinstance(target, ast.Name) and target.id != name and statement is not None and not given:
            # What it was put into is passed on in turn: `wrapped = jax.jit(f); return wrapped`.
            onward = self._last_use(filename, syntax, target.id, statement, given)
            if onward is not None and _is_return_at(syntax, onward.line, self._places, filename):
                return onward
        return self._of(filename, statement) if statement is not None else None

    def _return_of_traced(self) -> Place | None:
        if self._traced is None:
            return None
        filename, function = self._traced
        if isinstance(function, ast.Lambda):
            return self._place(filename, function.lineno, function.col_offset, function)
        syntax = self._places.syntax(filename)
        returns = [n for n in ast.walk(function) if isinstance(n, ast.Return) and syntax.function_around(n) is function]
        return self._of(filename, returns[-1]) if len(returns) == 1 else None

    def _of(self, filename: str, statement: ast.stmt) -> Place:
        syntax = self._places.syntax(filename)
        column = syntax.column(statement.lineno, statement.col_offset)
        return self._place(filename, statement.lineno, column, syntax.function_around(statement))

    def _place(self, filename: str, line: int, column: int, function: FunctionNode | None) -> Place:
        name = None if function is None else getattr(function, "name", "<lambda>")
        raw = line + (line - self._places.sources.line_in_text(filename, line))
        return self._places.sources.place(filename, raw, column, name)

    def _is_user(self, filename: str | None) -> bool:
        return filename is not None and self._places.owners.of_file(filename) == "user"


def bare(name: str | None) -> str:
    """A step's name without its decoration: ``.h`` gives ``h``, ``['k']`` gives ``k``, ``[0]`` gives ``0``."""
    if name is None:
        return ""
    text = name.removeprefix(".")
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
        if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
            text = text[1:-1]
    return text


def _binds(statement: ast.stmt, name: str | None) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(n, ast.Name) and n.id == name for target in targets for n in ast.walk(target))


def _mentions(expression: ast.expr, name: str) -> bool:
    return any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(expression))


def _library_step(step: Step, places: Places) -> bool:
    return step.filename is not None and places.owners.of_file(step.filename) != "user"


def _container_names(steps: Sequence[Step], index: int) -> list[str]:
    """Names by which the container of an item is reached: those of the next steps that are no items themselves."""
    for step in steps[index + 1 :]:
        if step.kind in _CONTAINERS:
            continue
        if step.kind in ("attribute", "global", "closure_cell", "class_attribute", "frame_local", "other"):
            return [bare(step.name)] if step.name else []
        if step.kind == "argument_default":
            return [bare(step.name)] if step.name else []
        return []
    return []


def _declares(candidate: _Candidate, kind: type[ast.Global] | type[ast.Nonlocal]) -> bool:
    function = candidate.write.function
    if function is None or isinstance(function, ast.Lambda):
        return False
    return any(isinstance(n, kind) and candidate.write.target in n.names for n in ast.walk(function))


def _contains(node: ast.AST, line: int) -> bool:
    return getattr(node, "lineno", 0) <= line <= (getattr(node, "end_lineno", 0) or 0)


def _guarded(syntax: Syntax, statement: ast.stmt | None, write: Write) -> bool:
    """Whether the write stands under ``if key not in cache`` or ``if x is None``, or is a ``setdefault``."""
    if write.method == "setdefault":
        return True
    for above in syntax.ancestors(statement) if statement is not None else ():
        if isinstance(above, FunctionNode):
            return False
        if isinstance(above, ast.If):
            for test in ast.walk(above.test):
                if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotIn | ast.Is | ast.In | ast.IsNot):
                    return True
                if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
                    return True
        if isinstance(above, ast.ExceptHandler):
            return True
    return False


def _is_inside(node: ast.AST, outer: ast.AST, syntax: Syntax) -> bool:
    return any(above is outer for above in syntax.ancestors(node))


def _only_called(use: ast.Name, syntax: Syntax) -> bool:
    above = syntax.parent(use)
    return isinstance(above, ast.Call) and above.func is use


def _is_return_at(syntax: Syntax, line: int, places: Places, filename: str) -> bool:
    return isinstance(syntax.statement_at(line), ast.Return)


def _parameters(function: FunctionNode) -> list[str]:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [a.arg for a in named if a.arg not in ("self", "cls")]
