"""From a call of the user to its node: which calls are pure and what they compute."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph import chunks, operators
from npufix.rewriters.graph.attributes import list_assigned
from npufix.rewriters.graph.canonical import (
    construct,
    random_op,
    spell_with_letters,
    spread,
    tensor_op,
)
from npufix.rewriters.graph.dataflow import UnsupportedCodeError
from npufix.rewriters.graph.helpers import HelperReader
from npufix.rewriters.graph.modules import torch_names
from npufix.rewriters.graph.modules.neighbours import find_imported_function
from npufix.rewriters.graph.special import Op
from npufix.rewriters.graph.submodules import (
    Submodule,
    is_made,
    read_construction,
    submodule,
    writes,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.nodes import Node
    from npufix.rewriters.graph.state import Expressions, State

# Written in the patterns of rules only.
_EITHER = "npufix.rules.substitution.either"
# What the value of an activation may be the result of.
_OF_ACTIVATIONS = frozenset({"mul", "silu", "gelu", "mish", Op.CAST})
# What the ``forward`` of a LayerNorm hands to its function beside the activation.
_OF_LAYER_NORM = ("normalized_shape", "weight", "bias", "eps")
# Where ``F.batch_norm`` takes its ``training``.
_TRAINING = 5


class CallReader:
    """Reads calls: of torch, of Python, of submodules, of helpers."""

    def __init__(self, state: State, expressions: Expressions) -> None:
        self.state = state
        self.expressions = expressions
        self.helpers = HelperReader(state, expressions)

    def call(self, code: ast.Call) -> Node:  # noqa: C901, PLR0911, PLR0912 - a case a kind of call
        """Return the value of a call.

        Raises:
            UnsupportedCodeError: it may bind variables, as ``exec()`` does.

        """
        dotted = self.state.dotted(code.func)
        if dotted is not None:
            helper = self._helper(code.func)
            if helper is not None:
                return self.helpers.inline(code, *helper)
            return self._library_call(code, dotted)
        match code.func:
            case ast.Name("locals" | "vars" | "eval" | "exec") if self.state.depth:
                return self.expressions.unknown(code)  # it can see the names of the helper only
            case ast.Name("eval" | "locals" as name) if (
                name not in self.state.env and not self.state.is_module
            ):
                self.state.captured |= set(self.state.env)
                self.state.sees_all |= name == "locals"
            case ast.Name("locals" | "vars" | "eval" | "exec" as name) if (
                name not in self.state.env
            ):
                if name != "vars" or not code.args:  # ``vars(args)`` is about another object
                    raise UnsupportedCodeError(name)
            case ast.Name(name) if name not in self.state.env and name not in self.state.outside:
                helper = self._helper(code.func)
                if helper is not None:
                    return self.helpers.inline(code, *helper)
                if name in torch_names.PURE_BUILTINS and name not in self.state.names.bound:
                    return self._python(code, name)
            case ast.Call(function) as made if not made.args:  # ``nn.Softmax(dim=-1)(x)``
                found = read_construction(made, function, self.state.names)
                is_function = found is not None and found.kind in {"function", "loss"}
                return (
                    self._submodule_call(code, found)
                    if found and is_function
                    else self.expressions.unknown(code)
                )
            case ast.Name(name) if name in self.state.declared:
                return self._read_declared_call(code, self.state.declared[name])
            case ast.Name(name) if name in self.state.outside:
                return self.expressions.unknown(code)
            case ast.Name(name) if inner := self.helpers.inner_function(self.state.env[name]):
                return self.helpers.inline(code, inner)
            case ast.Attribute(ast.Name("self"), attr) if self.state.cls and self.state.is_self():
                return self._own_call(code, self.state.cls, attr)
            case ast.Attribute(ast.Name(name), attr) if there := self._there(name, attr):
                return self.helpers.inline(code, *there)
            case ast.Attribute(owner, attr) if attr in operators.PURE_METHODS:
                base = self.expressions.read(owner)
                # A function of some module (``np.sum``) may do anything.
                unknown = base.op == Op.GLOBAL
                return (
                    self.expressions.unknown(code)
                    if unknown
                    else self._tensor_call(code, attr, (base,))
                )
            case ast.Attribute(owner, attr) if attr.endswith("_") and not attr.endswith("__"):
                base = self.expressions.read(owner)
                node = self._tensor_call(code, attr, (base,))
                fresh = base.op.removesuffix("(*)") in operators.FRESH
                if fresh and isinstance(owner, ast.Call):
                    return node
                if attr in operators.RESHAPES_IN_PLACE:
                    self.state.reshaping()
                return self.state.effect("write", node)
        return self._layer_norm_of_base(code)

    def _helper(
        self, called: ast.expr
    ) -> tuple[FunctionNode, tuple[Node, ...], ModuleNames | None] | None:
        """Return the function of this module or its package that is called."""
        match called:
            case ast.Name(name):
                own = self.state.names.functions.get(name)
                if own is not None:
                    return None if own.decorator_list else (own, (), None)
                return self._imported(name)
            case ast.Attribute(ast.Name(owner), name):
                return self._imported(f"{owner}.{name}")
        return None

    def _imported(
        self, called: str
    ) -> tuple[FunctionNode, tuple[Node, ...], ModuleNames | None] | None:
        """Return the function of another module of the package: ``f``, or ``module.f``."""
        other = find_imported_function(self.state.names, called)
        return None if other is None else (other[1], (), other[0])

    def _there(
        self, owner: str, name: str
    ) -> tuple[FunctionNode, tuple[Node, ...], ModuleNames | None] | None:
        """Return ``Rotary.rotate_half``, the static method of a class, or a function of a module.

        The class is one of this module, the other module of its package.
        """
        names = self.state.names
        cls = names.classes.get(owner)
        if owner in self.state.env or owner in self.state.outside or owner in names.unsure:
            return None
        if cls is None:
            return self._imported(f"{owner}.{name}")
        method = None if list_assigned(names, cls, name) else names.method(cls, name)
        return (method, (), None) if method is not None and is_static(method) else None

    def _layer_norm_of_base(self, code: ast.Call) -> Node:
        """Read ``super().forward(x)`` in a class whose one base is ``nn.LayerNorm``.

        Nothing is known of other calls.
        """
        match code:
            case ast.Call(ast.Attribute(ast.Call(ast.Name("super"), [], []), "forward"), [_], []):
                bases = self.state.cls.bases if self.state.cls and self.state.is_self() else []
            case _:
                return self.expressions.unknown(code)
        if [self.state.names.dotted(base) for base in bases] != ["torch.nn.LayerNorm"]:
            return self.expressions.unknown(code)
        own = [self.state.attribute_of(self.state.env["self"], name) for name in _OF_LAYER_NORM]
        given = [self.expressions.read(code.args[0]), *own]
        return tensor_op(self.state.graph, "layer_norm", given, {}, self.state.epoch)

    def _own_call(self, code: ast.Call, cls: ast.ClassDef, name: str) -> Node:
        """Read ``self.name(...)``: a method without side effects or a submodule."""
        method = self.state.names.method(cls, name)
        if method is None:
            found = submodule(self.state.names, cls, name)
            return (
                self.expressions.unknown(code)
                if found is None
                else self._submodule_call(code, found)
            )
        if list_assigned(self.state.names, cls, name):
            return self.expressions.unknown(code)  # an attribute hides the method
        if not method.decorator_list:
            return self.helpers.inline(code, method, (self.state.env["self"],))
        return (
            self.helpers.inline(code, method)
            if is_static(method)
            else self.expressions.unknown(code)
        )

    def _is_seen_here_alone(self, code: ast.expr, node: Node) -> bool:
        """Tell whether nothing else can see what a call writes to.

        ``act(norm(x))``, or ``h = norm(x)`` and then, with nothing between, ``h = act(h)``.
        """
        if not is_made(node) or isinstance(code, (ast.Call, ast.BinOp)):
            return is_made(node)
        match code, self.state.statement:
            case ast.Name(name), ast.Assign([ast.Name(target)]) if target == name:
                pass
            case ast.Name(name), ast.Return():
                pass
            case _:
                return False
        held = [known for known, value in self.state.env.items() if value is node]
        seen = [e.node for e in self.state.evaluations] + [o.node for o in self.state.observables]
        return held == [name] and not any(node in user.args for user in seen)

    def _read_declared_call(self, code: ast.Call, kind: str) -> Node:
        """Read a call of a rule's parameter that stands for a submodule or an activation."""
        if kind == "Activation":
            return self.state.op(
                Op.ACTIVATION, self.expressions.read(code.func), self.expressions.read(code.args[0])
            )
        return self._submodule_call(code, Submodule("module", kind))

    def _submodule_call(  # noqa: PLR0911 - one case a kind of submodule
        self, code: ast.Call, made: Submodule
    ) -> Node:
        """Read ``self.norm(x)`` where the class proves what ``self.norm`` is."""
        if made.kind == "own" and made.forward is not None:
            return self._own_forward(code, *made.forward)
        args, keywords = self.expressions.arguments(code)
        if made.kind in {"function", "loss"}:
            options = made.call.keywords if made.call else []
            settings = [*(made.call.args if made.call else []), *(o.value for o in options)]
            fits = not keywords and len(args) == (2 if made.kind == "loss" else 1)
            if not fits or not all(map(_is_literal, settings)):
                return self.expressions.unknown(code)
            if writes(made) and not self._is_seen_here_alone(code.args[0], args[0]):
                return self.expressions.unknown(code)
            given = [self.expressions.evaluate(s) for s in (made.call.args if made.call else [])]
            named = {
                str(o.arg): self.expressions.evaluate(o.value)
                for o in options
                if o.arg != "inplace"
            }
            return tensor_op(self.state.graph, made.name, [*args, *given], named, self.state.epoch)
        if len(args) != 1 or keywords or args[0].op == Op.STAR:
            return self.expressions.unknown(code)
        target = self.expressions.read(code.func)
        if made.kind == "activation":
            return self.state.op(Op.ACTIVATION, target, *args)
        if made.name == "Dropout":
            args += [self.state.attribute_of(target, name) for name in ("p", "training")]
            node = random_op(
                self.state.graph, "dropout", args, {}, self.state.unique(), self.state.epoch
            )
            self.state.observe("random", node)
            return node
        return self.state.op(f"module:{made.name}", target, *args)

    def _own_forward(self, code: ast.Call, home: ModuleNames, forward: FunctionNode) -> Node:
        """Read the call of a module whose class the package defines: a dropout, an activation."""
        module = self.expressions.read(code.func)
        node = self.helpers.inline(code, forward, (module,), home)
        if node.op == "dropout":
            return node
        # An activation has neither parameters nor settings.
        plain = node.op in _OF_ACTIVATIONS and module not in set(node.walk())
        return node if plain else self.expressions.unknown(code)

    def _library_call(self, code: ast.Call, dotted: str) -> Node:
        module, _, name = dotted.rpartition(".")
        if module == "einops":
            return self._einsum(code) if name == "einsum" else self._tensor_call(code, dotted, ())
        if dotted == _EITHER:
            place = (code.lineno, code.col_offset)
            return self.state.graph.node(
                Op.EITHER, *map(self.expressions.read, code.args), value=place
            )
        if module in torch_names.OPTIMIZERS:
            args, keywords = self.expressions.arguments(code)
            if "**" not in keywords and not any(arg.op == Op.STAR for arg in args):
                node = construct(self.state.graph, dotted, args, keywords, self.state.epoch)
                return self.state.effect("call", node)
        if module in torch_names.TORCH_FUNCTIONS and not name[:1].isupper():
            node = self._tensor_call(code, operators.name_in(module, name), ())
            out = next((k.value for k in code.keywords if k.arg == "out"), None)
            own = name in operators.SAME_SHAPE and self._is_same(code.args[:1], out)
            if name in operators.RESHAPES_IN_PLACE or (out is not None and not own):
                self.state.reshaping()  # ``out`` takes the shape of the result
            return self.state.effect("write", node) if _writes(name, code, self.state.env) else node
        folds = dotted == "functools.reduce" and bool(code.args)
        folds = folds and self.state.names.dotted(code.args[0]) in torch_names.FOLDED
        if folds or module.split(".")[0] in torch_names.PURE_MODULES:
            return self._python(code, dotted)
        return self.expressions.unknown(code)

    def _is_same(self, operands: Sequence[ast.expr], out: ast.expr | None) -> bool:
        """Tell whether ``torch.exp(x, out=x)`` writes into what it reads."""
        match operands, out:
            case [ast.Name(first)], ast.Name(second):
                named = self.state.env
                return first in named and named.get(first) is named.get(second)
        return False

    def _einsum(self, code: ast.Call) -> Node:
        """Read the ``einsum`` of einops, whose equation comes last, as that of torch."""
        args, keywords = self.expressions.arguments(code)
        *operands, equation = args or [self.state.graph.constant(None)]
        letters = spell_with_letters(equation.value) if equation.op == Op.CONST else None
        if letters is None or keywords or any(arg.op == Op.STAR for arg in operands):
            return self.state.op("einops.einsum", *args, *keywords.values(), value=tuple(keywords))
        equation = self.state.graph.constant(letters)
        return tensor_op(self.state.graph, "einsum", [equation, *operands], {}, self.state.epoch)

    def _of_einops(self, name: str, args: list[Node], keywords: dict[str, Node]) -> Node:
        """Read what einops makes of a tensor, which has as many dimensions as the text says.

        ``repeat(x, "b n -> b n d", d=4)`` is ``x[..., None].expand(-1, -1, 4)``.
        """
        graph, epoch = self.state.graph, self.state.epoch
        if args and args[0].op in {Op.LIST, Op.TUPLE}:
            node = tensor_op(graph, name, args, keywords, epoch)
            return (chunks.listed(graph, node) if name == "einops.rearrange" else None) or node
        plain = len(args) == 2 and args[0].op not in {Op.LIST, Op.TUPLE}  # noqa: PLR2004
        before, arrow, after = str(args[1].value).partition("->") if plain else ("",) * 3
        if not arrow or "..." in before:
            return tensor_op(graph, name, args, keywords, epoch)
        rank = len(re.sub(r"\([^)]*\)", " 1 ", before).split())
        self.state.ranks = {**self.state.ranks, args[0]: rank}
        kept, made = before.split(), after.split()
        new = made[len(kept) :]
        named = all(n.isidentifier() for n in made) and len(set(made)) == len(made)
        if not (new and named and kept == made[: len(kept)] and {*new} == {*keywords}):
            return tensor_op(graph, name, args, keywords, epoch)
        wide, same = args[0], graph.constant(-1)
        for _ in new:
            wide = tensor_op(graph, "unsqueeze", [wide, same], {}, epoch)
        sizes = [*(same for _ in kept), *map(keywords.__getitem__, new)]
        return tensor_op(graph, "expand", [wide, *sizes], {}, epoch)

    def _python(self, code: ast.Call, name: str) -> Node:
        args, keywords = self.expressions.arguments(code)
        if name in {"getattr", "hasattr"}:
            epoch = max(self.state.epoch, self.state.moved.get("", 0))
            return self.state.graph.node(f"py:{name}", *args, value=tuple(keywords), epoch=epoch)
        if name == "int" and len(args) == 1 and args[0].op == Op.SIZE:
            return args[0]
        if name == "len" and len(args) == 1 and args[0].op == Op.SHAPE:
            return self.state.graph.node(Op.RANK, *args[0].args, epoch=args[0].epoch)
        if name == "slice" and len(args) == 1 and not keywords:  # ``x[mask, :]``, in words
            none = self.state.graph.constant(None)
            return self.state.graph.node(Op.SLICE, none, args[0], none)
        return self.state.op(f"py:{name}", *args, *keywords.values(), value=tuple(keywords))

    def _tensor_call(self, code: ast.Call, name: str, bound: tuple[Node, ...]) -> Node:
        args, keywords = self.expressions.arguments(code)
        args = [*bound, *args]
        args, keywords = spread(name, args, keywords)
        if name == "where" and bound and len(args) == 3 and not keywords:  # noqa: PLR2004
            args = [
                args[1],
                args[0],
                args[2],
            ]  # ``x.where(mask, y)``: the function takes the mask first
        if name in operators.RANDOM:
            node = random_op(
                self.state.graph, name, args, keywords, self.state.unique(), self.state.epoch
            )
            self.state.observe("random", node)
            return node
        if name == "size" and args:
            args += [keywords.pop("dim")] if set(keywords) == {"dim"} else []
            plain = [arg for arg in args[1:] if arg.op == Op.CONST]
            if len(args) == 1 and not keywords:
                return self.state.about(Op.SHAPE, args[0])
            if len(plain) == 1 == len(args) - 1:
                return self.state.about(Op.SIZE, args[0], plain[0])
        if name in {"dim", "ndimension"} and len(args) == 1:
            return self.state.about(Op.RANK, args[0])
        if "**" in keywords or any(arg.op == Op.STAR for arg in args):
            node = self.state.op(f"{name}(*)", *args, *keywords.values(), value=tuple(keywords))
        elif name.startswith("einops."):
            node = self._of_einops(name, args, keywords)
        else:
            node = tensor_op(self.state.graph, name, args, keywords, self.state.epoch)
        if name in operators.FRESH:
            return self.state.once(node)
        return node if self.state.reshapes else self._of_known_rank(node)

    def _of_known_rank(self, node: Node) -> Node:
        """Read what a call is of a tensor of which the number of dimensions is known."""
        node = chunks.from_end(self.state.graph, node, self.state.ranks)
        return chunks.join(self.state.graph, node, self.state.ranks) or node


def _writes(name: str, code: ast.Call, env: Mapping[str, Node]) -> bool:
    """Tell whether a function of torch changes one of its arguments, or the state of torch."""
    given = {k.arg: k.value for k in code.keywords}
    trains = code.args[_TRAINING] if len(code.args) > _TRAINING else given.get("training")
    if name == "batch_norm" and None not in given and (trains is None or _is_false(trains)):
        return False  # it reads the statistics alone
    if (
        name.endswith("_")
        or name.startswith(torch_names.STATEFUL_PREFIXES)
        or name in operators.STATEFUL
    ):
        return True
    place = operators.inplace_position(name)
    flag = given.get("inplace")
    if place is not None and place < len(code.args):
        flag = code.args[place]
    no = flag is None or _is_false(flag)
    if isinstance(flag, ast.Name) and flag.id in env:  # a parameter of a helper
        no = env[flag.id].op == Op.CONST and env[flag.id].value is False
    return "out" in given or not no


def _is_false(code: ast.expr | None) -> bool:
    return isinstance(code, ast.Constant) and code.value is False


def is_static(method: FunctionNode) -> bool:
    """Tell whether a method is a plain function in the namespace of its class."""
    return [ast.unparse(d) for d in method.decorator_list] == ["staticmethod"]


def _is_literal(code: ast.expr) -> bool:
    return isinstance(code.operand if isinstance(code, ast.UnaryOp) else code, ast.Constant)
