"""Pytree classes of the user's: how they are registered, and how a field is moved from aux data to the children."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from jaxleak_magic.rewrite.appended_child import AppendedChild, Plain
from jaxleak_magic.rewrite.insertions import replace
from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.texts import TextEdit


def constructor_fields(definition: ast.ClassDef) -> list[tuple[str, str]] | None:
    """(parameter, attribute) of each constructor argument, where the constructor only stores them; else None."""
    init = next((s for s in definition.body if isinstance(s, ast.FunctionDef) and s.name == "__init__"), None)
    if init is None:
        return _annotated_fields(definition)
    arguments = init.args
    if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or init.decorator_list:
        return None
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args)]
    if not names:
        return None
    self_name, parameters = names[0], names[1:]
    stored: dict[str, str] = {}
    for statement in init.body:
        match statement:
            case ast.Expr(value=ast.Constant()):
                continue
            case ast.Assign(targets=[target], value=value):
                pairs = _pairs(target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                pairs = _pairs(target, value)
            case _:
                return None
        if pairs is None:
            return None
        for left, right in pairs:
            match left, right:
                case ast.Attribute(value=ast.Name(id=owner), attr=attribute), ast.Name(id=parameter):
                    if owner != self_name or parameter in stored or attribute in stored.values():
                        return None
                    stored[parameter] = attribute
                case _:
                    return None
    if set(stored) != set(parameters):
        return None
    return [(parameter, stored[parameter]) for parameter in parameters]


def _pairs(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]] | None:
    if isinstance(target, ast.Tuple):
        if not isinstance(value, ast.Tuple) or len(target.elts) != len(value.elts):
            return None
        return list(zip(target.elts, value.elts, strict=True))
    return [(target, value)]


def _annotated_fields(definition: ast.ClassDef) -> list[tuple[str, str]] | None:
    """Fields of a dataclass-like class: annotated names in order; None where something may compute in between."""
    if any(
        isinstance(s, ast.FunctionDef) and s.name in ("__post_init__", "__new__", "__setattr__")
        for s in definition.body
    ):
        return None
    fields = [
        s.target.id
        for s in definition.body
        if isinstance(s, ast.AnnAssign) and isinstance(s.target, ast.Name) and "ClassVar" not in ast.dump(s.annotation)
    ]
    return [(name, name) for name in fields] or None


def field_argument(definition: ast.ClassDef, call: ast.Call, attribute: str) -> ast.expr | None:
    """The expression that a constructor call gives for a field, or None where it is not sure."""
    fields = constructor_fields(definition) or []
    for number, (parameter, name) in enumerate(fields):
        if name != attribute:
            continue
        for keyword in call.keywords:
            if keyword.arg == parameter:
                return keyword.value
        plain = not any(isinstance(a, ast.Starred) for a in call.args)
        return call.args[number] if plain and number < len(call.args) else None
    return None


# -- flatten and unflatten -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Pair:
    """The two functions of a registered class, with what they return and how they name their arguments."""

    flattened: ast.Tuple
    flatten_argument: str
    rebuilt: ast.expr
    unflatten: ast.Lambda | ast.FunctionDef
    aux_argument: ast.arg
    children_argument: ast.arg


def move_to_children(program: Program, definition: ast.ClassDef, attribute: str) -> list[tuple[ast.AST, TextEdit]]:
    """Edits that make a field a pytree child of its class.

    Returns:
        (node whose text is edited, edit) pairs; empty where the field is a child already.

    Raises:
        Refused: where the class is registered in a form that is not understood.
    """
    declared = _declared_static(program, definition, attribute)
    if declared is not None:
        return declared
    functions = _flatten_functions(program, definition)
    if functions is None:
        raise Refused(
            f"How `{definition.name}` is registered as a pytree is not understood well enough. "
            f"Return `{attribute}` among the children in its flatten function, and take it from there in unflatten."
        )
    with_keys = getattr(functions[0], "name", "") == "tree_flatten_with_keys"
    pair = _pair(*functions) if not with_keys else None
    fields = constructor_fields(definition)
    moved = _move(program, definition, attribute, pair, fields) if pair is not None and fields is not None else None
    if moved is not None:
        return moved
    parameters = [parameter for parameter, _ in fields] if fields is not None else None
    return AppendedChild(program, definition, attribute, *functions, parameters, with_keys).edits()


_FLATTEN_METHODS = {
    "jax.tree_util.register_pytree_node_class": "tree_flatten",
    "jax.tree_util.register_pytree_with_keys_class": "tree_flatten_with_keys",
}


def _flatten_functions(program: Program, definition: ast.ClassDef) -> tuple[Plain, Plain, int] | None:
    """Flatten, unflatten, and how many parameters unflatten has before the aux data; None where it is not found."""
    methods = {s.name: s for s in definition.body if isinstance(s, ast.FunctionDef)}
    for decorator in definition.decorator_list:
        name = program.qualified(decorator)
        if name == "jax.tree_util.register_pytree_with_keys_class" and "tree_flatten" in methods:
            return None  # both would have to change
        if name in _FLATTEN_METHODS:
            flatten, unflatten = methods.get(_FLATTEN_METHODS[name]), methods.get("tree_unflatten")
            if flatten is None or unflatten is None or len(unflatten.args.args) != 3:
                return None
            return flatten, unflatten, 1
    owner = program.scope_at[definition]
    for load in program.loads(owner, definition.name):
        call = program.parent[load]
        if (
            isinstance(call, ast.Call)
            and call.args
            and call.args[0] is load
            and program.qualified(call.func) == "jax.tree_util.register_pytree_node"
            and len(call.args) == 3
        ):
            flatten, unflatten = (program.definition(argument) for argument in call.args[1:])
            if isinstance(flatten, ast.Lambda | ast.FunctionDef) and isinstance(
                unflatten, ast.Lambda | ast.FunctionDef
            ):
                return flatten, unflatten, 0
    return None


def _returned(function: ast.Lambda | ast.FunctionDef) -> ast.expr | None:
    """The one expression that a function returns, where it does nothing else."""
    if isinstance(function, ast.Lambda):
        return function.body
    body = [s for s in function.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    return body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None


def _pair(flatten: ast.Lambda | ast.FunctionDef, unflatten: ast.Lambda | ast.FunctionDef, skip: int) -> _Pair | None:
    flattened, rebuilt = _returned(flatten), _returned(unflatten)
    ok = isinstance(flattened, ast.Tuple) and len(flattened.elts) == 2 and rebuilt is not None
    if not ok or len(flatten.args.args) != 1 or len(unflatten.args.args) != 2 + skip:
        return None
    assert isinstance(flattened, ast.Tuple)
    assert rebuilt is not None
    aux, children = unflatten.args.args[skip:]
    return _Pair(flattened, flatten.args.args[0].arg, rebuilt, unflatten, aux, children)


def _move(
    program: Program, definition: ast.ClassDef, attribute: str, pair: _Pair, fields: list[tuple[str, str]]
) -> list[tuple[ast.AST, TextEdit]] | None:
    """The edits, with all children in the constructor's order; None where the functions are not of the plain form."""
    attributes = [name for _, name in fields]
    children = _attributes(pair.flattened.elts[0], pair.flatten_argument, attributes, None)
    aux = _attributes(pair.flattened.elts[1], pair.flatten_argument, attributes, attributes)
    if children is None or aux is None:
        return None
    if attribute in children:
        return []
    whole_object = isinstance(pair.flattened.elts[1], ast.Name)
    if whole_object and len(aux) + len(children) > 1:
        raise Refused(
            f"The whole `{definition.name}` is its own aux data, and which of its fields hold arrays is not known. "
            f"Return the fields that hold arrays or functions bound with `jax.tree_util.Partial` as children."
        )
    order = _rebuilt_order(program, pair, children, aux, whole_object, definition)
    if order != attributes:
        return None
    new_children = [name for name in attributes if name in children or name == attribute]
    new_aux = [name for name in aux if name != attribute]
    text = program.text_of[pair.flattened]
    of = pair.flatten_argument
    child_text = (
        "(" + ", ".join(f"{of}.{name}" for name in new_children) + ("," if len(new_children) == 1 else "") + ")"
    )
    if not new_aux:
        aux_text = "None"
    elif isinstance(pair.flattened.elts[1], ast.Tuple):
        aux_text = "(" + ", ".join(f"{of}.{name}" for name in new_aux) + ("," if len(new_aux) == 1 else "") + ")"
    else:
        aux_text = f"{of}.{new_aux[0]}"
    edits: list[tuple[ast.AST, TextEdit]] = []
    for part, new in zip(pair.flattened.elts, (child_text, aux_text), strict=True):
        edits += [(pair.flattened, edit) for edit in replace(text, part, new)]
    edits += _rebuild(program, pair, attributes, new_children, new_aux, definition, whole_object)
    return edits


def _attributes(node: ast.expr, of: str, known: list[str], whole: list[str] | None) -> list[str] | None:
    """Attribute names that an expression collects; ``whole`` is the answer for the object itself."""
    match node:
        case ast.Constant(value=None):
            return []
        case ast.Name(id=name) if name == of:
            return whole
        case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name == of and attribute in known:
            return [attribute] if whole is not None else None
        case ast.Tuple(elts=elements) | ast.List(elts=elements):
            names = [_attributes(e, of, known, []) for e in elements]
            flat = [n[0] for n in names if n and len(n) == 1]
            return flat if len(flat) == len(elements) else None
        case _:
            return None


def _rebuilt_order(
    program: Program, pair: _Pair, children: list[str], aux: list[str], whole: bool, definition: ast.ClassDef
) -> list[str] | None:
    """Attributes in the order in which unflatten hands them to the constructor, or None."""
    rebuilt = pair.rebuilt
    if isinstance(rebuilt, ast.Name) and rebuilt.id == pair.aux_argument.arg and whole:
        return aux
    if (
        not isinstance(rebuilt, ast.Call)
        or rebuilt.keywords
        or not _is_constructor(program, pair, rebuilt.func, definition)
    ):
        return None
    order: list[str] = []
    aux_is_tuple = isinstance(pair.flattened.elts[1], ast.Tuple)
    for argument in rebuilt.args:
        match argument:
            case ast.Starred(value=ast.Name(id=name)) if name == pair.children_argument.arg:
                order += children
            case ast.Starred(value=ast.Name(id=name)) if name == pair.aux_argument.arg and aux_is_tuple:
                order += aux
            case ast.Name(id=name) if name == pair.aux_argument.arg and not aux_is_tuple and len(aux) == 1:
                order += aux
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int(index))):
                source = children if name == pair.children_argument.arg else aux if aux_is_tuple else []
                if name not in (pair.children_argument.arg, pair.aux_argument.arg) or not 0 <= index < len(source):
                    return None
                order.append(source[index])
            case _:
                return None
    return order


def _is_constructor(program: Program, pair: _Pair, func: ast.expr, definition: ast.ClassDef) -> bool:
    if not isinstance(func, ast.Name):
        return False
    unflatten = pair.unflatten
    if isinstance(unflatten, ast.FunctionDef) and len(unflatten.args.args) == 3:
        return func.id == unflatten.args.args[0].arg
    return program.definition(func) is definition


def _rebuild(
    program: Program,
    pair: _Pair,
    attributes: list[str],
    children: list[str],
    aux: list[str],
    definition: ast.ClassDef,
    whole: bool,
) -> list[tuple[ast.AST, TextEdit]]:
    text = program.text_of[pair.rebuilt]
    children_name, aux_name = pair.children_argument.arg, pair.aux_argument.arg
    edits: list[TextEdit] = []
    if whole:
        # ``lambda learner, _: learner`` names the aux data after the object, and often the children ``_``.
        used = {children_name, aux_name, definition.name}
        new_children = "children" if children_name.strip("_") == "" and "children" not in used else children_name
        if new_children != children_name:
            edits += replace(text, pair.children_argument, new_children)
        edits += replace(text, pair.aux_argument, "_" if new_children != "_" else "aux")
        edits += replace(text, pair.rebuilt, f"{definition.name}(*{new_children})")
        return [(pair.rebuilt, edit) for edit in edits]
    assert isinstance(pair.rebuilt, ast.Call)
    constructor = text.of(pair.rebuilt.func)
    aux_tuple = isinstance(pair.flattened.elts[1], ast.Tuple)
    if children == attributes:
        arguments = f"*{children_name}"
    elif attributes[: len(children)] == children and aux_tuple:
        arguments = f"*{children_name}, *{aux_name}"
    else:
        arguments = ", ".join(
            f"{children_name}[{children.index(a)}]"
            if a in children
            else (f"{aux_name}[{aux.index(a)}]" if aux_tuple else aux_name)
            for a in attributes
        )
    return [(pair.rebuilt, edit) for edit in replace(text, pair.rebuilt, f"{constructor}({arguments})")]


# -- fields that are declared static ---------------------------------------------------------------------------------

_STATIC_OPTIONS = {"flax.struct.field": ("pytree_node", False), "equinox.field": ("static", True)}


def _declared_static(
    program: Program, definition: ast.ClassDef, attribute: str
) -> list[tuple[ast.AST, TextEdit]] | None:
    """Edits that take a field's ``static`` mark away, or move its name from ``meta_fields`` to ``data_fields``."""
    for statement in definition.body:
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call() as value) if name == attribute:
                return _without_static(program, statement, value)
            case ast.AnnAssign(target=ast.Name(id=name), value=None) if name == attribute:
                if _all_fields_are_children(program, definition):
                    return []
            case _:
                continue
    return _moved_in_lists(program, definition, attribute)


def _all_fields_are_children(program: Program, definition: ast.ClassDef) -> bool:
    """Whether every field of a class that is not declared static is a child."""
    names = {program.qualified(base) for base in definition.bases}
    names |= {program.qualified(d.func if isinstance(d, ast.Call) else d) for d in definition.decorator_list}
    return not names.isdisjoint(
        ("equinox.Module", "flax.struct.dataclass", "flax.struct.PyTreeNode", "chex.dataclass", "typing.NamedTuple")
    )


def _without_static(
    program: Program, statement: ast.AnnAssign, value: ast.Call
) -> list[tuple[ast.AST, TextEdit]] | None:
    name = program.qualified(value.func)
    text = program.text_of[statement]
    marks: list[ast.keyword] = []
    for keyword in value.keywords:
        if name in _STATIC_OPTIONS:
            option, static = _STATIC_OPTIONS[name]
            if keyword.arg == option and isinstance(keyword.value, ast.Constant) and keyword.value.value is static:
                marks.append(keyword)
        elif name == "dataclasses.field" and keyword.arg == "metadata" and _is_static_metadata(keyword.value):
            marks.append(keyword)
    if len(marks) != 1 or value.args:
        return None
    if len(value.keywords) == 1:
        start = text.after_parentheses(text.stop(statement.annotation), text.start(value))
        return [(statement, TextEdit(start, text.stop(value), 0, ""))]
    number = value.keywords.index(marks[0])
    if number + 1 < len(value.keywords):
        return [(statement, TextEdit(text.start(marks[0]), text.start(value.keywords[number + 1]), 0, ""))]
    before = text.after_parentheses(text.stop(value.keywords[number - 1].value), text.start(marks[0]))
    return [(statement, TextEdit(before, text.after_parentheses(text.stop(marks[0]), text.stop(value) - 1), 0, ""))]


def _is_static_metadata(node: ast.expr) -> bool:
    match node:
        case ast.Call(
            func=ast.Name(id="dict"), args=[], keywords=[ast.keyword(arg="static", value=ast.Constant(value=True))]
        ):
            return True
        case ast.Dict(keys=[ast.Constant(value="static")], values=[ast.Constant(value=True)]):
            return True
        case _:
            return False


def _moved_in_lists(
    program: Program, definition: ast.ClassDef, attribute: str
) -> list[tuple[ast.AST, TextEdit]] | None:
    calls = [d for d in definition.decorator_list if isinstance(d, ast.Call)]
    owner = program.scope_at[definition]
    for load in program.loads(owner, definition.name):
        parent = program.parent[load]
        if isinstance(parent, ast.Call) and parent.args[:1] == [load]:
            calls.append(parent)
    for call in calls:
        names = [program.qualified(call.func), *(program.qualified(a) for a in call.args[:1])]
        if "jax.tree_util.register_dataclass" not in names:
            continue
        given = {k.arg: k.value for k in call.keywords}
        data, meta = given.get("data_fields"), given.get("meta_fields")
        if not isinstance(data, ast.List | ast.Tuple) or not isinstance(meta, ast.List | ast.Tuple):
            return None
        text = program.text_of[call]
        written = [e for e in meta.elts if isinstance(e, ast.Constant) and e.value == attribute]
        if len(written) != 1:
            return None
        kept = [text.of(e) for e in meta.elts if e is not written[0]]
        all_data = [*(text.of(e) for e in data.elts), text.of(written[0])]
        edits = replace(text, meta, _sequence(meta, kept)) + replace(text, data, _sequence(data, all_data))
        return [(call, edit) for edit in edits]
    return None


def _sequence(like: ast.List | ast.Tuple, items: list[str]) -> str:
    if isinstance(like, ast.List):
        return "[" + ", ".join(items) + "]"
    return "(" + ", ".join(items) + ("," if len(items) == 1 else "") + ")"


# -- values that sit in aux data without a function ------------------------------------------------------------------


def is_registered(program: Program, definition: ast.ClassDef) -> bool:
    """Whether a class is a pytree as far as the texts show."""
    if _flatten_functions(program, definition) is not None:
        return True
    names = {program.qualified(d.func if isinstance(d, ast.Call) else d) for d in definition.decorator_list}
    for decorator in definition.decorator_list:
        if isinstance(decorator, ast.Call):
            names |= {program.qualified(a) for a in decorator.args}
    bases = {program.qualified(base) for base in definition.bases}
    owner = program.scope_at[definition]
    for load in program.loads(owner, definition.name):
        parent = program.parent[load]
        if isinstance(parent, ast.Call) and parent.func is not load:
            names.add(program.qualified(parent.func))
    known = {name for name in names | bases if name}
    return any(
        name.startswith("jax.tree_util.register")
        or name in ("flax.struct.dataclass", "flax.struct.PyTreeNode", "equinox.Module")
        for name in known
    )


def class_named(program: Program, name: str) -> ast.ClassDef | None:
    """The one class of the user's with this name."""
    found = [node for node in program.own_scope if isinstance(node, ast.ClassDef) and node.name == name]
    return found[0] if len(found) == 1 else None


def register(program: Program, definition: ast.ClassDef) -> list[tuple[ast.AST, TextEdit]]:
    """Edits that make a plain class a pytree whose only field is a child.

    Raises:
        Refused: where the class is more than a plain holder of one value.
    """
    fields = constructor_fields(definition)
    methods = {s.name for s in definition.body if isinstance(s, ast.FunctionDef)}
    special = methods & {
        "__eq__",
        "__hash__",
        "__setattr__",
        "__getattr__",
        "__getattribute__",
        "__new__",
        "tree_flatten",
    }
    slots = any(isinstance(n, ast.Name) and n.id == "__slots__" for n in ast.walk(definition))
    plain = not definition.bases and not definition.keywords and not definition.decorator_list
    init = any(name == "__init__" for name in methods)
    if fields is None or len(fields) != 1 or special or slots or not plain or not init:
        raise Refused(
            f"`{definition.name}` is no pytree and holds more than one plain value. Register it with "
            f"`jax.tree_util.register_pytree_node_class`, its arrays as children, and make it a child itself."
        )
    decorator = program.spelling("jax.tree_util.register_pytree_node_class", definition)
    text = program.text_of[definition]
    start = text.start(definition)
    indent = text.indent_of_line(start)
    inner = text.indent_of_line(text.start(definition.body[0]))
    if decorator is None or indent is None or inner is None:
        raise Refused(f"Register `{definition.name}` as a pytree, with `{fields}` as a child.")
    end, line = text.stop(definition), text.newline
    step = inner[len(indent) :]
    added = [
        f"{inner}def tree_flatten(self):",
        f"{inner}{step}return (self.{fields[0][1]},), None",
        "",
        f"{inner}@classmethod",
        f"{inner}def tree_unflatten(cls, aux, children):",
        f"{inner}{step}return cls(*children)",
    ]
    edits = [TextEdit(start, start, 0, f"@{decorator}{line}{indent}")]
    edits.append(TextEdit(end, end, 0, line + line + line.join(added)))
    return [(definition, edit) for edit in edits]


def is_unflatten_call(program: Program, call: ast.Call) -> bool:
    """Whether a constructor call is that of a registered unflatten function, or stands in the class itself."""
    function = program.enclosing_function(call)
    if function is None:
        return False
    if program.scope_at[function].kind == "class":
        return getattr(function, "name", "") == "tree_unflatten"
    uses: list[ast.AST] = [function]
    if not isinstance(function, ast.Lambda):
        owner = program.scope_at[function].lookup(function.name)
        uses = list(program.loads(owner, function.name)) if owner is not None else []
    parents = [program.parent.get(use) for use in uses]
    return any(
        isinstance(parent, ast.Call) and (program.qualified(parent.func) or "").startswith("jax.tree_util.register")
        for parent in parents
    )


def constructor_calls(program: Program, definition: ast.ClassDef) -> Iterator[ast.Call]:
    """Every call that makes an object of a class, but for those in the class itself and in its unflatten function."""
    for load in program.loads(program.scope_at[definition], definition.name):
        call = program.parent[load]
        inside = program.scope_at[load].is_inside(program.own_scope[definition])
        if isinstance(call, ast.Call) and call.func is load and not inside and not is_unflatten_call(program, call):
            yield call
