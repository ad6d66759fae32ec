"""From a call of the user to its node: which calls are pure and what they compute."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.graph import halves, operators, torch_names
from npufix.rewriters.graph.attributes import assigned_values
from npufix.rewriters.graph.canonical import constructed, random_op, tensor_op
from npufix.rewriters.graph.dataflow import ReadAgainError, UnsupportedCodeError
from npufix.rewriters.graph.helpers import HelperReader
from npufix.rewriters.graph.modules.neighbours import imported_function
from npufix.rewriters.graph.special import Op
from npufix.rewriters.graph.submodules import Submodule, made_by, submodule

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.nodes import Node

# Written in the patterns of rules only.
_EITHER = "npufix.rules.substitution.either"


class CallReader(HelperReader):
    """Reads calls: of torch, of Python, of submodules, of helpers."""

    def call(self, code: ast.Call) -> Node:  # noqa: C901, PLR0911, PLR0912 - a case a kind of call
        """Return the value of a call."""
        dotted = self.dotted(code.func)
        if dotted is not None:
            helper = self._helper(code.func)
            if helper is not None:
                return self.inline(code, *helper)
            return self._library_call(code, dotted)
        match code.func:
            case ast.Name("locals" | "vars" | "eval" | "exec") if self.depth:
                return self.unknown(code)  # it can see the names of the helper only
            case ast.Name("eval") if "eval" not in self.env and not self.is_module:
                self.captured |= set(self.env)
            case ast.Name("locals" | "vars" | "eval" | "exec" as name) if name not in self.env:
                if name != "vars" or not code.args:  # ``vars(args)`` is about another object
                    raise UnsupportedCodeError(name)
            case ast.Name(name) if name not in self.env and name not in self.outside:
                helper = self._helper(code.func)
                if helper is not None:
                    return self.inline(code, *helper)
                if name in torch_names.PURE_BUILTINS and name not in self.names.bound:
                    return self._python(code, name)
            case ast.Call(function) as made if not made.args:  # ``nn.Softmax(dim=-1)(x)``
                found = made_by(made, function, self.names)
                is_function = found is not None and found.kind == "function"
                return (
                    self._submodule_call(code, found)
                    if found and is_function
                    else self.unknown(code)
                )
            case ast.Name(name) if name in self.declared:
                return self._declared_call(code, self.declared[name])
            case ast.Name(name) if name in self.outside:
                return self.unknown(code)
            case ast.Name(name) if inner := self.inner_function(self.env[name]):
                return self.inline(code, inner)
            case ast.Attribute(ast.Name("self"), attr) if self.cls and self.is_self():
                return self._own_call(code, self.cls, attr)
            case ast.Attribute(owner, attr) if attr in operators.PURE_METHODS:
                base = self.read(owner)
                # A function of some module (``np.sum``) may do anything.
                unknown = base.op == Op.GLOBAL
                return self.unknown(code) if unknown else self._tensor_call(code, attr, (base,))
            case ast.Attribute(owner, attr) if attr.endswith("_") and not attr.endswith("__"):
                base = self.read(owner)
                node = self._tensor_call(code, attr, (base,))
                fresh = base.op.removesuffix("(*)") in operators.FRESH
                if fresh and isinstance(owner, ast.Call):
                    return node
                if attr in operators.RESHAPES_IN_PLACE:
                    self.reshaping()
                return self.effect("write", node)
        return self.unknown(code)

    def reshaping(self) -> None:
        """Take note that a tensor gets another shape in place."""
        if not self.reshapes:
            raise ReadAgainError(reshapes=True)

    def _helper(
        self, called: ast.expr
    ) -> tuple[FunctionNode, tuple[Node, ...], ModuleNames | None] | None:
        """Return the function of this module or its package that a name stands for."""
        if not isinstance(called, ast.Name):
            return None
        own = self.names.functions.get(called.id)
        if own is not None:
            return None if own.decorator_list else (own, (), None)
        other = imported_function(self.names, called.id)
        return None if other is None else (other[1], (), other[0])

    def _own_call(self, code: ast.Call, cls: ast.ClassDef, name: str) -> Node:
        """Read ``self.name(...)``: a method without side effects or a submodule."""
        method = self.names.method(cls, name)
        if method is None:
            found = submodule(self.names, cls, name)
            return self.unknown(code) if found is None else self._submodule_call(code, found)
        if assigned_values(self.names, cls, name):
            return self.unknown(code)  # an attribute hides the method
        if not method.decorator_list:
            return self.inline(code, method, (self.env["self"],))
        return self.inline(code, method) if is_static(method) else self.unknown(code)

    def _declared_call(self, code: ast.Call, kind: str) -> Node:
        """Read a call of a rule's parameter that stands for a submodule or an activation."""
        if kind == "Activation":
            return self.op(Op.ACTIVATION, self.read(code.func), self.read(code.args[0]))
        return self._submodule_call(code, Submodule("module", kind))

    def _submodule_call(  # noqa: PLR0911 - one case a kind of submodule
        self, code: ast.Call, made: Submodule
    ) -> Node:
        """Read ``self.norm(x)`` where the class proves what ``self.norm`` is."""
        if made.kind == "own" and made.forward is not None:
            return self._own_forward(code, *made.forward)
        args, keywords = self.arguments(code)
        if made.kind == "function":
            options = made.call.keywords if made.call else []
            settings = [*(made.call.args if made.call else []), *(o.value for o in options)]
            if keywords or len(args) != 1 or not all(map(_is_literal, settings)):
                return self.unknown(code)
            given = [self._read(s) for s in (made.call.args if made.call else [])]
            named = {str(o.arg): self._read(o.value) for o in options if o.arg != "inplace"}
            return tensor_op(self.graph, made.name, [*args, *given], named, self.epoch)
        if len(args) != 1 or keywords or args[0].op == Op.STAR:
            return self.unknown(code)
        target = self.read(code.func)
        if made.kind == "activation":
            return self.op(Op.ACTIVATION, target, *args)
        if made.name == "Dropout":
            args += [self.attribute_of(target, name) for name in ("p", "training")]
            node = random_op(self.graph, "dropout", args, {}, self.unique(), self.epoch)
            self.observe("random", node)
            return node
        return self.op(f"module:{made.name}", target, *args)

    def _own_forward(self, code: ast.Call, home: ModuleNames, forward: FunctionNode) -> Node:
        """Read the call of a module whose class the package defines, if it is a dropout."""
        node = self.inline(code, forward, (self.read(code.func),), home)
        return node if node.op == "dropout" else self.unknown(code)

    def _library_call(self, code: ast.Call, dotted: str) -> Node:
        module, _, name = dotted.rpartition(".")
        if module == "einops":
            return self._tensor_call(code, dotted, ())
        if dotted == _EITHER:
            place = (code.lineno, code.col_offset)
            return self.graph.node(Op.EITHER, *map(self.read, code.args), value=place)
        if module in torch_names.OPTIMIZERS:
            args, keywords = self.arguments(code)
            if "**" not in keywords and not any(arg.op == Op.STAR for arg in args):
                node = constructed(self.graph, dotted, args, keywords, self.epoch)
                return self.effect("call", node)
        if module in torch_names.TORCH_FUNCTIONS and not name[:1].isupper():
            node = self._tensor_call(code, operators.name_in(module, name), ())
            if name in operators.RESHAPES_IN_PLACE or any(k.arg == "out" for k in code.keywords):
                self.reshaping()  # ``out`` takes the shape of the result
            return self.effect("write", node) if _writes(name, code, self.env) else node
        if module.split(".")[0] in torch_names.PURE_MODULES:
            return self._python(code, dotted)
        return self.unknown(code)

    def _python(self, code: ast.Call, name: str) -> Node:
        args, keywords = self.arguments(code)
        if name in {"getattr", "hasattr"}:
            epoch = max(self.epoch, self.moved.get("", 0))
            return self.graph.node(f"py:{name}", *args, value=tuple(keywords), epoch=epoch)
        if name == "int" and len(args) == 1 and args[0].op == Op.SIZE:
            return args[0]
        if name == "slice" and len(args) == 1 and not keywords:  # ``x[mask, :]``, in words
            none = self.graph.constant(None)
            return self.graph.node(Op.SLICE, none, args[0], none)
        return self.op(f"py:{name}", *args, *keywords.values(), value=tuple(keywords))

    def _tensor_call(self, code: ast.Call, name: str, bound: tuple[Node, ...]) -> Node:
        args, keywords = self.arguments(code)
        args = [*bound, *args]
        if name == "where" and bound and len(args) == 3 and not keywords:  # noqa: PLR2004
            args = [
                args[1],
                args[0],
                args[2],
            ]  # ``x.where(mask, y)``: the function takes the mask first
        if name in operators.RANDOM:
            node = random_op(self.graph, name, args, keywords, self.unique(), self.epoch)
            self.observe("random", node)
            return node
        if name == "size" and args:
            plain = [arg for arg in args[1:] if arg.op == Op.CONST]
            if len(args) == 1:
                return self.about(Op.SHAPE, args[0])
            if len(plain) == 1 == len(args) - 1:
                return self.about(Op.SIZE, args[0], plain[0])
        if name in {"dim", "ndimension"} and len(args) == 1:
            return self.about(Op.RANK, args[0])
        if "**" in keywords or any(arg.op == Op.STAR for arg in args):
            node = self.op(f"{name}(*)", *args, *keywords.values(), value=tuple(keywords))
        else:
            node = tensor_op(self.graph, name, args, keywords, self.epoch)
        if name in operators.FRESH:
            return self.once(node)
        return (None if self.reshapes else halves.joined(self.graph, node, self.ranks)) or node

    def once(self, node: Node) -> Node:
        """Return a new tensor or list; two of the same contents are not one when one is changed."""
        if node not in self.made:
            self.made[node] = 0
            return node
        self.made[node] += 1
        return self.graph.node(Op.AGAIN, node, value=self.made[node])


def _writes(name: str, code: ast.Call, env: Mapping[str, Node]) -> bool:
    """Tell whether a function of torch changes one of its arguments, or the state of torch."""
    if (
        name.endswith("_")
        or name.startswith(torch_names.STATEFUL_PREFIXES)
        or name in operators.STATEFUL
    ):
        return True
    given = {k.arg: k.value for k in code.keywords}
    place = operators.inplace_position(name)
    flag = given.get("inplace")
    if place is not None and place < len(code.args):
        flag = code.args[place]
    no = flag is None or (isinstance(flag, ast.Constant) and flag.value is False)
    if isinstance(flag, ast.Name) and flag.id in env:  # a parameter of a helper
        no = env[flag.id].op == Op.CONST and env[flag.id].value is False
    return "out" in given or not no


def is_static(method: FunctionNode) -> bool:
    """Tell whether a method is a plain function in the namespace of its class."""
    return [ast.unparse(d) for d in method.decorator_list] == ["staticmethod"]


def _is_literal(code: ast.expr) -> bool:
    return isinstance(code.operand if isinstance(code, ast.UnaryOp) else code, ast.Constant)
