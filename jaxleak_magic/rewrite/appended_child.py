"""A field of a hand-written flatten and unflatten becomes one more child, put after those that are there.

For functions that are more than one ``return``: local names, aux data in a dict, unpacking, objects made by
``__new__``, aux data that is all of ``vars(self)`` but some names.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from jaxleak_magic.rewrite.program import Program
from jaxleak_magic.rewrite.refusing import Refused
from jaxleak_magic.rewrite.texts import Text, TextEdit

Plain = ast.Lambda | ast.FunctionDef
NodeEdit = tuple[ast.AST, TextEdit]


@dataclass
class AppendedChild:
    """Moves one attribute of a class from aux data to the end of the children.

    Args:
        program: all texts.
        definition: the class.
        attribute: the attribute to move.
        flatten: its flatten function.
        unflatten: its unflatten function.
        skip: number of unflatten's parameters before the aux data (1 for a class method).
        parameters: the constructor's parameters in order, or None where it is not a plain one.
        with_keys: whether flatten gives its children with keys.
    """

    program: Program
    definition: ast.ClassDef
    attribute: str
    flatten: Plain
    unflatten: Plain
    skip: int
    parameters: list[str] | None
    with_keys: bool = False
    _edits: list[NodeEdit] = field(default_factory=list)

    def edits(self) -> list[NodeEdit]:
        """(node, edit) pairs; empty where the attribute is a child already.

        Raises:
            Refused: where a form is not understood.
        """
        arguments = self.unflatten.args.args
        result = self._returned_pair()
        if result is None or len(self.flatten.args.args) != 1 or len(arguments) != 2 + self.skip:
            raise self._refused()
        children, aux = result
        if not isinstance(children, ast.Tuple | ast.List):
            raise self._refused()
        values = [self._value_of(element) for element in children.elts]
        if any(map(self._is_attribute, values)):
            return []
        self.number = len(children.elts)
        self.aux_name, self.children_name = arguments[self.skip].arg, arguments[self.skip + 1].arg
        self._extend_children(children)
        self._take_from_aux(aux)
        return self._edits

    # -- flatten ------------------------------------------------------------------------------------------------------

    @property
    def _self(self) -> str:
        return self.flatten.args.args[0].arg

    def _returned_pair(self) -> tuple[ast.expr, ast.expr] | None:
        """The expressions behind flatten's children and aux data."""
        value = _only_return(self.flatten)
        value = self._resolved(value) if value is not None else None
        if not isinstance(value, ast.Tuple) or len(value.elts) != 2:
            return None
        return self._resolved(value.elts[0]), self._resolved(value.elts[1])

    def _resolved(self, node: ast.expr) -> ast.expr:
        """What a local name was assigned, where it is assigned once and read once."""
        if not isinstance(node, ast.Name):
            return node
        owner = self.program.owner(node)
        site = self.program.only_site(owner, node.id) if owner is not None else None
        value = self.program.assigned_value(site) if site is not None else None
        if owner is None or owner is not self.program.own_scope[self.flatten] or value is None:
            return node
        return value if len(self.program.loads(owner, node.id)) == 1 else node

    def _is_attribute(self, node: ast.expr) -> bool:
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=attribute):
                return name == self._self and attribute == self.attribute
            case _:
                return False

    def _value_of(self, child: ast.expr) -> ast.expr:
        """The value of a child, which a flatten function with keys gives as ``(key, value)``."""
        return child.elts[1] if self.with_keys and isinstance(child, ast.Tuple) and len(child.elts) == 2 else child

    def _new_child(self, display: ast.Tuple | ast.List) -> str:
        new = f"{self._self}.{self.attribute}"
        if not self.with_keys:
            return new
        match display.elts:
            case [ast.Tuple(elts=[ast.Call(func=key, args=[ast.Constant()], keywords=[]), _]), *_]:
                return f'({self._text(key).of(key)}("{self.attribute}"), {new})'
            case _:
                raise self._refused()

    def _extend_children(self, display: ast.Tuple | ast.List) -> None:
        text, new = self._text(display), self._new_child(display)
        if not display.elts:
            self._replace(display, f"({new},)" if isinstance(display, ast.Tuple) else f"[{new}]")
            return
        end = text.after_parentheses(text.stop(display.elts[-1]), text.stop(display) - 1)
        one = isinstance(display, ast.Tuple) and len(display.elts) == 1
        stop = text.stop(display)
        if one and text.masked[text.skip_filler(end)] == ",":
            comma = text.skip_filler(end)
            self._edit(display, comma + 1, comma + 1, f" {new}")
        elif text.masked[stop - 1] in ")]":
            self._edit(display, end, end, f", {new}")
        else:
            raise self._refused()

    def _take_from_aux(self, aux: ast.expr) -> None:
        match aux:
            case ast.Attribute() if self._is_attribute(aux):
                self._replace(aux, "None")
                self._whole_aux_read()
            case ast.Tuple() | ast.List() if any(map(self._is_attribute, aux.elts)):
                number = next(i for i, element in enumerate(aux.elts) if self._is_attribute(element))
                self._without(aux, number)
                self._element_of_aux_read(number, len(aux.elts))
            case ast.Dict() if any(map(self._is_attribute, aux.values)):
                number = next(i for i, value in enumerate(aux.values) if self._is_attribute(value))
                self._key_of_aux_read(aux, number)
            case _:
                self._filtered(aux)

    def _without(self, display: ast.Tuple | ast.List, number: int) -> None:
        text, elements = self._text(display), display.elts
        kept = [text.of(element) for i, element in enumerate(elements) if i != number]
        if isinstance(display, ast.List):
            self._replace(display, "[" + ", ".join(kept) + "]")
        elif not kept:
            self._replace(display, "None")
        else:
            self._replace(display, "(" + ", ".join(kept) + ("," if len(kept) == 1 else "") + ")")

    # -- unflatten ----------------------------------------------------------------------------------------------------

    def _whole_aux_read(self) -> None:
        """The aux data is the value itself: each read of it becomes the child."""
        self._check_children_reads()
        for load in self._loads(self.aux_name):
            if isinstance(self.program.parent[load], ast.Starred | ast.Subscript):
                raise self._refused()
            self._replace(load, self._child)

    def _element_of_aux_read(self, number: int, count: int) -> None:
        """The aux data is a tuple: reads of the element become the child, later elements move up."""
        unpacked: ast.Assign | None = None
        for load in self._loads(self.aux_name):
            parent = self.program.parent[load]
            match parent:
                case ast.Subscript(slice=ast.Constant(value=int(index))) if 0 <= index < count:
                    if index == number:
                        self._replace(parent, self._child)
                    elif index > number:
                        self._replace(parent.slice, str(index - 1))
                case ast.Assign(targets=[ast.Tuple(elts=targets)]) if len(targets) == count and unpacked is None:
                    unpacked = parent
                case _:
                    raise self._refused()
        self._check_children_reads(taken_from=unpacked and self._target(unpacked, number))
        if unpacked is not None:
            self._drop_target(unpacked, number)

    def _target(self, statement: ast.Assign, number: int) -> str:
        (target,) = statement.targets
        assert isinstance(target, ast.Tuple)
        name = target.elts[number]
        if not isinstance(name, ast.Name):
            raise self._refused()
        return name.id

    def _drop_target(self, statement: ast.Assign, number: int) -> None:
        (target,) = statement.targets
        assert isinstance(target, ast.Tuple)
        text = self._text(statement)
        kept = [text.of(name) for i, name in enumerate(target.elts) if i != number]
        name = self._target(statement, number)
        if not any(self._is_unpacking(load) for load in self._loads(self.children_name)):
            names = ", ".join(kept) if len(kept) > 1 else f"({''.join(kept)},)"
            others = f"{text.newline}{text.indent_of_line(text.start(statement))}{names} = {self.aux_name}"
            self._replace(statement, f"{name} = {self._child}{others if kept else ''}")
        elif kept:
            self._replace(target, ", ".join(kept) if len(kept) > 1 else f"({kept[0]},)")
        else:
            raise self._refused()

    def _key_of_aux_read(self, aux: ast.Dict, number: int) -> None:
        """The aux data is a dict: one key of it becomes the child."""
        key = aux.keys[number]
        if not isinstance(key, ast.Constant) or not isinstance(key.value, str) or not key.value.isidentifier():
            raise self._refused()
        spread = [load for load in self._loads(self.aux_name) if isinstance(self.program.parent[load], ast.keyword)]
        for load in self._loads(self.aux_name):
            match self.program.parent[load]:
                case ast.Subscript(slice=ast.Constant(value=read)) as item:
                    if read == key.value:
                        self._replace(item, self._child)
                case ast.keyword(arg=None):
                    pass
                case _:
                    raise self._refused()
        if not spread:
            self._check_children_reads()
        elif len(spread) == 1:
            self._pass_by_name(spread[0], key.value)
        else:
            raise self._refused()
        text = self._text(aux)
        kept = [
            text.text[text.start(k) : text.stop(v)]
            for i, (k, v) in enumerate(zip(aux.keys, aux.values, strict=True))
            if k is not None and i != number
        ]
        if len(kept) != len(aux.keys) - 1:
            raise self._refused()
        self._replace(aux, "{" + ", ".join(kept) + "}")

    def _pass_by_name(self, spread: ast.Name, parameter: str) -> None:
        """``cls(*children, **aux)``: the child goes by position where its turn is next, else by name."""
        keyword = self.program.parent[spread]
        call = self.program.parent[keyword]
        assert isinstance(call, ast.Call)
        starred = [a for a in call.args if isinstance(a, ast.Starred)]
        text = self._text(call)
        if not starred:
            self._check_children_reads()
            start = text.start(keyword)
            self._edit(call, start, start, f"{parameter}={self._child}, ")
            return
        (only,) = starred if len(starred) == 1 else (None,)
        plain = only is not None and isinstance(only.value, ast.Name) and only.value.id == self.children_name
        if not plain or len(call.args) != 1 or len(self._loads(self.children_name)) != 1:
            raise self._refused()
        if (self.parameters or [])[: self.number + 1][self.number :] == [parameter]:
            return
        assert only is not None
        self._replace(only, f"*{self.children_name}[:-1]")
        start = text.start(keyword)
        self._edit(call, start, start, f"{parameter}={self.children_name}[-1], ")

    def _filtered(self, aux: ast.expr) -> None:
        """Aux data made of all of ``vars(self)`` but some names: one name more is left out, and set from the child."""
        found = [node for node in ast.walk(self.flatten) if self._is_vars_comprehension(node)]
        if len(found) != 1 or not any(node is found[0] for node in self._within(aux)):
            raise self._refused()
        comprehension = found[0]
        assert isinstance(comprehension, ast.DictComp)
        (generator,) = comprehension.generators
        if len(generator.ifs) != 1 or not isinstance(condition := generator.ifs[0], ast.Compare):
            raise self._refused()
        text, name = self._text(condition), repr(self.attribute).replace("'", '"')
        match condition:
            case ast.Compare(ops=[ast.NotEq()], comparators=[ast.Constant(value=str()) as one]):
                self._replace(condition, f"{text.of(condition.left)} not in ({text.of(one)}, {name})")
            case ast.Compare(ops=[ast.NotIn()], comparators=[ast.Tuple(elts=elements)]) if elements:
                end = text.stop(elements[-1])
                self._edit(condition, end, end, f", {name}")
            case _:
                raise self._refused()
        self._set_on_new_object()

    def _is_vars_comprehension(self, node: ast.AST) -> bool:
        """``{k: v for k, v in vars(self).items() if ...}`` or the same over ``self.__dict__``."""
        match node:
            case ast.DictComp(
                key=ast.Name(id=key),
                value=ast.Name(id=value),
                generators=[
                    ast.comprehension(
                        target=ast.Tuple(elts=[ast.Name(id=first), ast.Name(id=second)]),
                        iter=ast.Call(func=ast.Attribute(value=source, attr="items")),
                        ifs=[ast.Compare(left=ast.Name(id=tested))],
                    )
                ],
            ):
                if (key, value, tested) != (first, second, first):
                    return False
                match source:
                    case ast.Call(func=ast.Name(id="vars"), args=[ast.Name(id=name)]):
                        return name == self._self
                    case ast.Attribute(value=ast.Name(id=name), attr="__dict__"):
                        return name == self._self
                    case _:
                        return False
            case _:
                return False

    def _within(self, aux: ast.expr) -> list[ast.AST]:
        """The nodes of the aux data's expression, and of what its local names were assigned."""
        nodes = list(ast.walk(aux))
        for name in [node for node in nodes if isinstance(node, ast.Name)]:
            if (value := self._resolved(name)) is not name:
                nodes += ast.walk(value)
        return nodes

    def _set_on_new_object(self) -> None:
        """``new.__dict__.update(...)`` in unflatten: the attribute is set from the child before it."""
        if isinstance(self.unflatten, ast.Lambda):
            raise self._refused()
        self._check_children_reads()
        for statement in self.unflatten.body:
            match statement:
                case ast.Expr(value=ast.Call(func=ast.Attribute(value=target, attr="update"))):
                    new = _object_of(target)
                    text = self._text(statement)
                    start = text.start(statement)
                    indent = text.indent_of_line(start)
                    if new is None or indent is None:
                        continue
                    line = f"{new}.{self.attribute} = {self._child}{text.newline}{indent}"
                    self._edit(statement, start, start, line)
                    return
                case _:
                    continue
        raise self._refused()

    def _check_children_reads(self, taken_from: str | None = None) -> None:
        """The children are read by number, so that one more changes nothing; or unpacked, where one more is taken."""
        for load in self._loads(self.children_name):
            parent = self.program.parent[load]
            match parent:
                case ast.Subscript(slice=ast.Constant(value=int(index))) if 0 <= index < self.number:
                    continue
                case ast.Assign(targets=[ast.Tuple(elts=elements) as target]) if len(elements) == self.number:
                    if taken_from is None:
                        raise self._refused()
                    text = self._text(target)
                    names = ", ".join([*(text.of(element) for element in elements), taken_from])
                    self._replace(target, names)
                case _:
                    raise self._refused()

    def _is_unpacking(self, load: ast.Name) -> bool:
        parent = self.program.parent[load]
        return isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple)

    # -- pieces -------------------------------------------------------------------------------------------------------

    @property
    def _child(self) -> str:
        return f"{self.children_name}[{self.number}]"

    def _loads(self, name: str) -> list[ast.Name]:
        return self.program.loads(self.program.own_scope[self.unflatten], name)

    def _text(self, node: ast.AST) -> Text:
        return self.program.text_of[node]

    def _edit(self, node: ast.AST, start: int, stop: int, new: str) -> None:
        self._edits.append((node, TextEdit(start, stop, 0, new)))

    def _replace(self, node: ast.AST, new: str) -> None:
        text = self._text(node)
        self._edit(node, text.start(node), text.stop(node), new)

    def _refused(self) -> Refused:
        return Refused(
            f"How `{self.definition.name}` is registered as a pytree is not understood well enough. "
            f"Return `{self.attribute}` among the children in its flatten function, and take it from there in "
            "unflatten."
        )


def _only_return(function: Plain) -> ast.expr | None:
    """What a function returns after nothing but assignments of names."""
    if isinstance(function, ast.Lambda):
        return function.body
    *before, last = function.body
    for statement in before:
        match statement:
            case ast.Expr(value=ast.Constant()) | ast.Assign(targets=[ast.Name()]):
                continue
            case _:
                return None
    return last.value if isinstance(last, ast.Return) else None


def _object_of(target: ast.expr) -> str | None:
    """The name of the object whose attributes ``new.__dict__`` or ``vars(new)`` is."""
    match target:
        case ast.Attribute(value=ast.Name(id=name), attr="__dict__"):
            return name
        case ast.Call(func=ast.Name(id="vars"), args=[ast.Name(id=name)]):
            return name
        case _:
            return None
