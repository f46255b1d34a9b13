"""The edits of a lift: a function's head, and each place where the values have to reach it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass

from jaxleak_magic.rewrite import insertions
from jaxleak_magic.rewrite.argument_slot import ArgumentSlot
from jaxleak_magic.rewrite.draft import Draft
from jaxleak_magic.rewrite.flow import Flow
from jaxleak_magic.rewrite.imports import import_module
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.pytree_classes import is_unflatten_call, move_to_children
from jaxleak_magic.rewrite.refusing import Refused, listed
from jaxleak_magic.rewrite.scopes import FunctionNode, Scope
from jaxleak_magic.rewrite.texts import Text, TextEdit
from jaxleak_magic.rewrite.uses import Use


@dataclass(frozen=True)
class UseEdits:
    """Writes what a flow found into a draft.

    Args:
        program: all texts.
        draft: takes the edits.
    """

    program: Program
    draft: Draft

    def emit(self, flow: Flow) -> None:
        """Add the edits at a function's head and at its uses to the draft."""
        function = flow.function
        text = self.program.text_of[function]
        uses, slot = flow.uses, ArgumentSlot(self.program, self.draft)
        if any(use.kind == "slot" for use in uses):
            if (number := slot.free_number(flow)) is not None:
                slot.fill(flow, number)
                return
            uses = slot.uses_without_slot(flow)
        if any(use.cached for use in uses) and not all(self._is_settled(flow, v) for v in flow.owners):
            raise Refused(
                f"{listed(flow.variables)} changes after `{flow.name}` was made, and a compiled `{flow.name}` may go "
                "on with "
                f"the old value. Give the value that it should use a name of its own."
            )
        binds = [use for use in uses if use.kind in ("bind", "field")]
        others = [use for use in uses if use.kind not in ("bind", "field")]
        if binds and any(use.kind == "mapped" for use in others):
            raise Refused(
                f"`{flow.name}` is bound in one place and needs one value for each mapped row in another. "
                f"Pass {listed(flow.variables)} by hand."
            )
        parameters = self._parameters(flow)
        arguments = function.args
        plain = flow.rule is None and not _numbered(function)
        if binds and all(use.direct and use.row is None for use in others) and plain:
            self.draft.add(text, insertions.prepend_parameters(text, function, parameters))
            place = "first"
        elif arguments.defaults or arguments.vararg or arguments.kwonlyargs or arguments.kwarg:
            self.draft.add(text, insertions.append_keyword_only(text, function, parameters))
            place = "keyword"
        else:
            self.draft.add(text, insertions.append_parameters(text, function, parameters))
            place = "last"
        axes: list[ast.AST] = []
        for use in uses:
            self._emit_use(use, place, flow, axes)

    def _parameters(self, flow: Flow) -> list[str]:
        """Names of the new parameters: the variables', but for an element that is passed instead of its index."""
        if not flow.elements:
            return list(flow.variables)
        if any(use.kind != "call" or use.row is None or not use.row.floats_only for use in flow.uses):
            raise Refused(
                f"`{flow.name}` is used in several ways, of which one takes only floats. Compute what it needs of "
                f"{listed(sorted(flow.elements))} before the calls, and pass that."
            )
        for element in flow.elements.values():
            self.draft.variables.append(element.parameter)
            for node in element.nodes:
                text = self.program.text_of[node]
                self.draft.add(text, insertions.replace(text, node, element.parameter))
        return [flow.elements[v].parameter if v in flow.elements else v for v in flow.variables]

    def _emit_use(self, use: Use, place: str, flow: Flow, axes: list[ast.AST]) -> None:
        text = self.program.text_of[use.node]
        names = list(use.values)
        named = [f"{name}={value}" for name, value in zip(flow.variables, names, strict=bool(names))]
        if use.kind == "axes":
            if place != "last":
                raise Refused(
                    f"`{flow.name}` is mapped and has defaults. Pass {listed(flow.variables)} by hand, `in_axes` None."
                )
            if use.node not in axes:
                axes.append(use.node)
                self._extend_axes(use, flow)
        elif use.kind in ("bind", "field"):
            if flow.no_pytrees:
                raise flow.no_argument(use.node)
            if self._is_bound_already(use):
                self._check_bound_early(flow)
                self._bind_more(use, names if place == "first" else named, by_name=place != "first")
                return
            partial = self.program.spelling("jax.tree_util.Partial", use.node)
            if partial is None and import_module(self.program, self.draft, "jax", use.node):
                partial = "jax.tree_util.Partial"
            if partial is None:
                raise Refused(
                    "`jax.tree_util.Partial` cannot be reached by a name here. Import `jax`, then bind "
                    f"{listed(names)} to "
                    f"`{flow.name}` with it."
                )
            self._check_bound_early(flow)
            values = ", ".join(names if place == "first" else named)
            opening = self._opening_around(use)
            self.draft.add(
                text, insertions.wrap(text, use.node, f"{opening}{partial}(", f", {values})" + ")" * bool(opening))
            )
            self.draft.bound = True
            if use.kind == "field" and use.field_of is not None and use.field_name is not None:
                self._make_child(use.field_of, use.field_name, flow)
        elif use.kind == "term":
            pass
        elif use.kind == "mapped":
            self._map_call(use, place, flow)
        elif use.kind == "tuple":
            if place != "last":
                raise Refused(f"`{flow.name}` has defaults. Pass {listed(names)} through `args` by hand.")
            self._extend_tuple(use, flow)
        else:
            assert isinstance(use.node, ast.Call)
            if place == "keyword":
                row = use.row
                if not use.direct and (
                    row is None or not row.hands_keywords or set(row.own_keywords) & set(flow.variables)
                ):
                    raise Refused(
                        f"`{flow.name}` has parameters with defaults, so {listed(names)} cannot be added by position. "
                        f"Put it before them by hand and pass it at `{flow.short(use.node.func)}`."
                    )
                self.draft.add(text, insertions.append_keywords(text, use.node, named))
            elif place == "first":
                self.draft.add(text, insertions.prepend_arguments(text, use.node, names))
            elif use.keywords:
                self.draft.add(text, insertions.append_keywords(text, use.node, named))
            else:
                self.draft.add(text, insertions.append_arguments(text, use.node, names))

    def _is_bound_already(self, use: Use) -> bool:
        call = self.program.parent[use.node]
        return (
            isinstance(call, ast.Call)
            and call.args[:1] == [use.node]
            and self.program.qualified(call.func) == "jax.tree_util.Partial"
        )

    def _bind_more(self, use: Use, values: Sequence[str], by_name: bool) -> None:
        """Values beside those that a ``Partial`` of the user's binds; by position they come first."""
        call = self.program.parent[use.node]
        assert isinstance(call, ast.Call)
        text = self.program.text_of[call]
        if by_name:
            self.draft.add(text, insertions.append_keywords(text, call, values))
        else:
            end = text.after_parentheses(text.stop(use.node), text.stop(call) - 1)
            self.draft.add(text, [TextEdit(end, end, 0, "".join(f", {value}" for value in values))])
        self.draft.bound = True

    def _opening_around(self, use: Use) -> str:
        """What is written before a bound expression, such as ``nnx.data(``, or nothing."""
        if use.inside is None:
            return ""
        if (spelled := self.program.spelling(use.inside, use.node)) is None:
            raise Refused(f"`{use.inside}` cannot be reached by a name here. Import it, and mark the bound function.")
        return f"{spelled}("

    def _map_call(self, use: Use, place: str, flow: Flow) -> None:
        """Map a call outside of the transform over the rows of the values."""
        assert isinstance(use.node, ast.Call)
        text, vmap = self.program.text_of[use.node], self.program.spelling("jax.vmap", use.node)
        if vmap is not None and place == "keyword" and len(use.axes) == 1:
            (name,), (value,), (axis,) = flow.variables, use.values, use.axes
            axes = f", in_axes={axis}" if axis else ""
            self.draft.add(text, insertions.wrap(text, use.node, f"{vmap}(lambda {name}: ", f"{axes})({value})"))
            self.draft.add(text, insertions.append_keywords(text, use.node, [f"{name}={name}"]))
            return
        if vmap is None or place != "last":
            raise Refused(
                f"{listed(flow.variables)} has one value for each mapped row. Map the call of `{flow.name}` on line "
                f"{use.node.lineno} over it with `jax.vmap`."
            )
        entries = ", ".join(["None"] * len(use.node.args) + [str(axis) for axis in use.axes])
        entries += "," if len(use.node.args) + len(use.axes) == 1 else ""
        self.draft.add(text, insertions.wrap(text, use.node.func, f"{vmap}(", f", in_axes=({entries}))"))
        self.draft.add(text, insertions.append_arguments(text, use.node, use.values))

    def _check_bound_early(self, flow: Flow) -> None:
        for variable in flow.owners:
            if not self._is_settled(flow, variable):
                raise Refused(
                    f"`{variable}` is assigned more than once, and `{flow.name}` would keep only one of its values. "
                    f"Give the value that it should use a name of its own."
                )

    def _is_settled(self, flow: Flow, variable: str) -> bool:
        """Whether a variable is never assigned again after the function was made: one assignment, no further loop."""
        owner = flow.owners[variable]
        site = self.program.only_site(owner, variable)
        if site is None or site.kind not in ("parameter", "assign"):
            return False
        loops = self._loops_around(site.node, owner)
        return loops <= self._loops_around(flow.function, owner)

    def _loops_around(self, node: ast.AST, owner: Scope) -> set[ast.AST]:
        found: set[ast.AST] = set()
        current: ast.AST | None = node
        while current is not None and current is not owner.node:
            if isinstance(current, ast.For | ast.AsyncFor | ast.While):
                found.add(current)
            current = self.program.parent.get(current)
        return found

    def _extend_axes(self, use: Use, flow: Flow) -> None:
        assert isinstance(use.node, ast.Call)
        assert use.row is not None
        assert use.row.axes is not None
        text = self.program.text_of[use.node]
        keyword = next((k for k in use.node.keywords if k.arg == use.row.axes), None)
        given = keyword.value if keyword else use.node.args[1] if len(use.node.args) > 1 else None
        entry = "None"
        if use.row.axes_entry is not None:
            spelled = self.program.spelling(use.row.axes_entry, use.node)
            if spelled is None or not isinstance(given, ast.Tuple):
                raise Refused(
                    f"The `{use.row.axes}` for `{flow.name}` are not written as a tuple, or `PartitionSpec` is not "
                    f"imported. Add an empty `PartitionSpec()` for each of {listed(flow.variables)} by hand."
                )
            entry = f"{spelled}()"
        extra = [entry] * len(flow.variables)
        if isinstance(given, ast.Tuple):
            self.draft.add(text, _extend_sequence(text, given, extra))
            return
        counts = {len(u.node.args) for u in flow.uses if u.kind == "call" and u.direct and isinstance(u.node, ast.Call)}
        if len(counts) != 1 or not (given is None or (isinstance(given, ast.Constant) and given.value is not None)):
            raise Refused(
                f"The `in_axes` for the mapped `{flow.name}` are not written out. Write them as a tuple with one "
                "entry for "
                f"each argument, then pass {listed(flow.variables)} with `None`."
            )
        entry = "0" if given is None else text.of(given)
        value = "(" + ", ".join([entry] * counts.pop() + extra) + ")"
        if given is not None:
            self.draft.add(text, insertions.replace(text, given, value))
        else:
            self.draft.add(text, insertions.append_arguments(text, use.node, [f"{use.row.axes}={value}"]))

    def _extend_tuple(self, use: Use, flow: Flow) -> None:
        assert isinstance(use.node, ast.Call)
        assert use.row is not None
        assert use.row.slot is not None
        text, call = self.program.text_of[use.node], use.node
        keyword, position = use.row.slot
        given = next((k.value for k in call.keywords if k.arg == keyword), None)
        if given is None and len(call.args) > position:
            given = call.args[position]
        names = list(use.values)
        if isinstance(given, ast.Tuple):
            self.draft.add(text, _extend_sequence(text, given, names))
        elif given is None and len(call.args) == position:
            value = "(" + ", ".join(names) + ("," if len(names) == 1 else "") + ")"
            self.draft.add(text, insertions.append_arguments(text, call, [f"{keyword}={value}"]))
        else:
            raise Refused(
                f"`{keyword}` of `{flow.short(call.func)}` is not written as a tuple. Add {listed(names)} to it by "
                "hand."
            )

    def _make_child(self, definition: ast.ClassDef, attribute: str, flow: Flow) -> None:
        if (definition.name, attribute) in self.draft.children:
            return
        edits = move_to_children(self.program, definition, attribute)
        if not edits:
            return  # it is a child already
        self.draft.children.append((definition.name, attribute))
        self._check_other_objects(definition, attribute, flow)
        self.draft.new_parameters |= {"children", "aux", "_"}
        for node, edit in edits:
            self.draft.add(self.program.text_of[node], [edit])

    def _check_other_objects(self, definition: ast.ClassDef, attribute: str, flow: Flow) -> None:
        """A field that is a child may hold no plain function any more, in no object of the class."""
        bound = [use.node for use in flow.uses if use.kind == "field"]
        owner = self.program.scope_at[definition]
        for load in self.program.loads(owner, definition.name):
            call = self.program.parent[load]
            if isinstance(call, ast.Call) and call.func is load and not is_unflatten_call(self.program, call):
                given = [*call.args, *(keyword.value for keyword in call.keywords)]
                if not any(each in bound for each in given):
                    raise Refused(
                        f"Another `{definition.name}` is made on line {call.lineno}. Bind what its `{attribute}` gets "
                        "with "
                        f"`jax.tree_util.Partial` too, then make `{attribute}` a pytree child."
                    )
        for node in self.program.scope_at:
            match node:
                case ast.Attribute(attr=name, value=ast.Attribute(attr=owner_of)) if owner_of == attribute:
                    if name.startswith("__"):
                        raise Refused(
                            f"`{attribute}.{name}` is read (line {node.lineno}), which a bound function lacks."
                        )
                case _:
                    pass


def _extend_sequence(text: Text, node: ast.Tuple, values: Sequence[str]) -> list[TextEdit]:
    if not node.elts or text.text[text.start(node)] != "(":
        raise Refused("A tuple of arguments is written in an unusual way. Extend it by hand.")
    return [insertions.extend_tuple(text, node, values)]


def _numbered(function: FunctionNode) -> bool:
    """Whether a decorator counts arguments, so that none may be put before the others."""
    if isinstance(function, ast.Lambda):
        return False
    return any(isinstance(d, ast.Call) and d.keywords for d in function.decorator_list)
