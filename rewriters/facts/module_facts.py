"""What a module says beside the function: how its submodules are made, which names it uses."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.attributes import list_assigned, number_of_lengths
from npufix.rewriters.graph.modules.neighbours import foreign_bases
from npufix.rewriters.graph.modules.syntax import last_name, list_names, nodes_of, walk
from npufix.rewriters.graph.modules.wrapped_modules import find_made_by_factory
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
    from npufix.rewriters.graph.nodes import Node
    from npufix.rewriters.match.matching import Match

_PARAMETERS: Mapping[str, tuple[str, ...]] = {
    "Dropout": ("p", "inplace"),
    "GroupNorm": ("num_groups", "num_channels", "eps", "affine"),
    "LayerNorm": ("normalized_shape", "eps", "elementwise_affine", "bias"),
    "RMSNorm": ("normalized_shape", "eps", "elementwise_affine"),
}
_PARAMETER = frozenset({"torch.nn.Parameter", "torch.nn.parameter.Parameter"})
_KEY = "words of the module"
_OF_ONE_TENSOR = re.compile(
    r"torch\.nn\.(Linear|Bilinear|Embedding|Conv\w+|\w*Norm\w*|(Adaptive)?AvgPool\dd|\w*E?LU\w*|SiLU"
    r"|(Log)?Sigmoid|Tanh|Mish|Softplus|Softmax|Hardswish|\w*Dropout\w*|\w*Pad\dd|Upsample\w*"
    r"|Pixel(Uns|S)huffle|Flatten)"
)
"""Modules that return one tensor."""
_OF_MODELS = re.compile(
    r"(Attention|Backbone|Block|Criterion|Decoder|Detector|Embeddings?|Encoder|Head|Layer|Loss|Mixin"
    r"|Model|Module|Neck|Net(work)?|Policy|Predictor|Segmentor|Transformer)(V?\d+)?$"
)
"""What classes of torch, and of those who build on it, are called that are modules."""
_NO_MODULES = frozenset({"ABC", "Generic", "Protocol", "object"})
_WITHOUT_GRADIENTS = frozenset({"torch.no_grad", "torch.inference_mode"})
_SERVES = re.compile(
    r"(paged_)?(prefill|decode)_attention|paged_attention\w*|flash_attn_with_kvcache"
    r"|_?npu_(paged_attention|incre_flash_attention|prompt_flash_attention)\w*"
)
"""Attention of servers, which reads the keys of all tokens so far and has no backward pass."""


def setting(flow: FunctionFlow, node: Node, parameter: str) -> str | None:
    """Return the code of an argument of a submodule's constructor, "" if it has its default.

    ``None`` where the class does not say, or says different things.
    """
    found = {
        "" if value is None else ast.unparse(value)
        for _, value in _list_given(flow, node, parameter)
    }
    return found.pop() if len(found) == 1 else None


def returns_tensor(flow: FunctionFlow, node: Node) -> bool:
    """Tell whether a value is what modules of torch.nn return: ``self.bn(x)``."""
    called = bool(node.args) and (node.op.startswith("module:") or node.op == Op.CALL)
    made = _list_assigned(flow, node.args[0]) if called else ()
    return bool(made) and all(value is not None and _makes_one(flow, value) for _, value in made)


def _makes_one(flow: FunctionFlow, code: ast.expr) -> bool:
    match code:
        case ast.Call(function, args):
            name = flow.names.dotted(function) or ""
            if name == "torch.nn.Sequential" and args:
                return _makes_one(flow, args[-1])
            return _OF_ONE_TENSOR.fullmatch(name) is not None
    return False


def count_normalized_dims(flow: FunctionFlow, node: Node) -> int | None:
    """Return over how many dimensions a norm computes its mean, ``None`` if that is not clear."""
    found = {
        None if value is None else number_of_lengths(value, method, flow.names)
        for method, value in _list_given(flow, node, "normalized_shape")
    }
    return found.pop() if len(found) == 1 else None


def _list_given(
    flow: FunctionFlow, node: Node, parameter: str
) -> Iterator[tuple[FunctionNode, ast.expr | None]]:
    """Yield the argument in each construction of ``self.norm``; ``None`` for its default."""
    for method, made in _list_assigned(flow, node):
        if not isinstance(made, ast.Call):
            continue
        call = find_made_by_factory(made, flow.names) or made
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        arguments = dict(zip(_PARAMETERS.get(name, ()), call.args, strict=False))
        arguments |= {k.arg: k.value for k in call.keywords if k.arg is not None}
        yield method, arguments.get(parameter)


def is_parameter(flow: FunctionFlow, node: Node) -> bool:
    """Tell whether an attribute is a trained parameter wherever the class assigns it."""
    made = [value for _, value in _list_assigned(flow, node)]
    return bool(made) and all(
        isinstance(value, ast.Call) and flow.names.dotted(value.func) in _PARAMETER
        for value in made
    )


def _list_assigned(
    flow: FunctionFlow, node: Node
) -> Sequence[tuple[FunctionNode, ast.expr | None]]:
    """Return what the class assigns to ``self.name``, and where; nothing for another value."""
    is_own = node.op == Op.ATTR and node.args[0].op == Op.PARAM and node.args[0].value == "self"
    if not is_own or flow.cls is None:
        return ()
    return list_assigned(flow.names, flow.cls, str(node.value))


def is_power_of_length(flow: FunctionFlow, scale: Node, weight: Node, power: float) -> bool:
    """Tell whether a number is the power of the length of a weight, going by where both are made.

    ``self.scale = dim**-0.5`` beside ``self.gamma = nn.Parameter(torch.ones(dim))``.
    """
    match _list_assigned(flow, scale), _list_assigned(flow, weight):
        case [(first, ast.BinOp(ast.Name(base), ast.Pow(), exponent))], [
            (second, ast.Call(parameter, [ast.Call(factory, [ast.Name(length), *_])]))
        ]:
            if flow.names.dotted(parameter) not in _PARAMETER or first is not second:
                return False
            made = flow.names.dotted(factory) in {"torch.ones", "torch.zeros", "torch.empty"}
            again = any(
                isinstance(node, ast.Name) and node.id == length and isinstance(node.ctx, ast.Store)
                for node in nodes_of(first)
            )
            raised = ast.unparse(exponent) == str(power)
            return made and raised and base == length and not again
    return False


def may_keep_buffers(names: ModuleNames, cls: ast.ClassDef | None) -> bool:
    """Tell whether a class is a module, as far as its own bases, their names or its methods say.

    ``class MaskedLoss(PointLoss)`` is none where that is a class of Python alone.
    """
    family = () if cls is None else (cls, *names.bases(cls))
    bases = [last_name(base) for one in family for base in one.bases]
    forward = any(getattr(item, "name", "") == "forward" for one in family for item in one.body)
    if cls is None or not ((forward and bases) or any(map(_OF_MODELS.search, bases))):
        return False
    foreign = [one for _, one in foreign_bases(names, cls)]
    known = {one.name for one in (*family, *foreign)} | _NO_MODULES
    return any(last_name(base) not in known for one in (*family, *foreign) for base in one.bases)


def is_without_gradients(flow: FunctionFlow, match: Match) -> bool | None:
    """Tell whether the code says that no gradient is wanted; ``None`` if it says nothing."""
    line = match.evaluation.statement.lineno
    contexts = [*flow.function.decorator_list]
    for part in nodes_of(flow.function):
        if isinstance(part, ast.With) and part.lineno <= line <= (part.end_lineno or part.lineno):
            contexts += [item.context_expr for item in part.items]
    functions = [c.func if isinstance(c, ast.Call) else c for c in contexts]
    if any(flow.names.dotted(f) in _WITHOUT_GRADIENTS for f in functions):
        return True
    calls = (n.func for n in nodes_of(flow.function) if isinstance(n, ast.Call))
    return any(_SERVES.fullmatch(last_name(called) or "") for called in calls) or None


def is_left_out(flow: FunctionFlow, node: Node) -> bool:
    """Tell whether a call in the module leaves a parameter at its default, ``None``."""
    args, tree = flow.function.args, flow.names.tree
    if node.op != Op.PARAM or tree is None or flow.cls is not None:
        return False
    given = [arg.arg for arg in (*args.posonlyargs, *args.args)]
    optional = dict(zip(reversed(given), reversed(args.defaults), strict=False))
    match optional.get(str(node.value)):
        case ast.Constant(None):
            place = given.index(str(node.value))
        case _:
            return False
    calls = (n for n in nodes_of(tree) if isinstance(n, ast.Call))
    return any(
        isinstance(call.func, ast.Name)
        and call.func.id == flow.function.name
        and len(call.args) <= place
        and not any(isinstance(arg, ast.Starred) for arg in call.args)
        and all(k.arg not in {None, node.value} for k in call.keywords)
        for call in calls
    )


def mentions(names: ModuleNames, words: Collection[str]) -> bool:
    """Tell whether a module uses one of these names: a variable, attribute, keyword or import."""
    if _KEY not in names.assigned:
        tree = names.read_whole()
        names.assigned[_KEY] = frozenset(_words(tree)) if tree else frozenset()
    return not names.assigned[_KEY].isdisjoint(words)


def uses(tree: ast.AST, words: Collection[str]) -> bool:
    """Tell whether some code uses one of these names."""
    return not set(words).isdisjoint(_words(tree))


def arguments(names: ModuleNames, method: str) -> Sequence[Mapping[str, str]]:
    """Return the code of the arguments of each ``x.method(...)`` in a module.

    ``x`` is under "", positional arguments under "0", "1", keywords under their names.
    """
    found: list[Mapping[str, str]] = []
    tree = names.read_whole()
    for node in nodes_of(tree) if tree else ():
        match node:
            case ast.Call(ast.Attribute(owner, attr), positional, keywords) if attr == method:
                given = {"": ast.unparse(owner)}
                given |= {str(i): ast.unparse(arg) for i, arg in enumerate(positional)}
                given |= {k.arg or "**": ast.unparse(k.value) for k in keywords}
                found.append(given)
    return found


def brings_no_decay(function: FunctionNode, code: ast.expr) -> bool:
    """Tell whether code holds parameters one by one, or groups that bring no decay of their own.

    ``list(a.parameters()) + list(b.parameters())``, ``[p for p in net.parameters() if ...]``, or a
    name that is bound to, and gets, nothing else: ``params.extend(net.parameters())``.
    """
    known = False
    parts: Sequence[ast.expr | None] = ()
    match code:
        case ast.Call(ast.Name("list" | "tuple" | "iter"), parts, []) | ast.List(parts):
            known = True
        case ast.Call(ast.Name("cast"), [_, inner], []) | ast.Starred(inner):
            known, parts = True, [inner]
        case ast.Call(called):
            known = last_name(called) in {"chain", "filter", "parameters"}
        case ast.BinOp(left, ast.Add(), right):
            known, parts = True, [left, right]
        case ast.ListComp(elt, [*_, last]) | ast.GeneratorExp(elt, [*_, last]):
            known = _is_parameter(elt, last)
        case ast.Dict(keys):  # ``{"params": p, "lr": rate}``
            named = [key.value for key in keys if isinstance(key, ast.Constant)]
            known = len(named) == len(keys) and "weight_decay" not in named
        case ast.Name(name):
            parts = list(_list_joined(function, name))
            known = bool(parts)
    return known and all(part is not None and brings_no_decay(function, part) for part in parts)


def first_argument(code: ast.AST, name: str) -> ast.expr | None:
    """Return the first argument of a call, which may be given by its name."""
    match code:
        case ast.Call(_, [first, *_]):
            return first
        case ast.Call(_, [], words):
            return next((word.value for word in words if word.arg == name), None)
    return None


def _is_parameter(code: ast.expr, loop: ast.For | ast.comprehension) -> bool:
    """Tell whether a loop goes through parameters, and code is the one that it has come to.

    ``p`` of ``for p in model.parameters()``, and of ``for name, p in model.named_parameters()``
    """
    called = last_name(loop.iter.func) if isinstance(loop.iter, ast.Call) else ""
    match loop.target, called:
        case (ast.Tuple([_, ast.Name(name)]), "named_parameters") | (ast.Name(name), "parameters"):
            return isinstance(code, ast.Name) and code.id == name
    return False


def _list_joined(function: FunctionNode, name: str) -> Iterator[ast.expr | None]:
    """Yield what a name is bound to and what is added to it, ``None`` for what is not known.

    Whatever else is done with it may make groups of it: ``groups[0].update(weight_decay=0.1)``.
    """
    loops = [n for n in walk(function) if isinstance(n, ast.For)]
    seen = 0
    for node in walk(function):
        match node:
            case (
                ast.Assign([ast.Name(own)], value)
                | ast.AugAssign(ast.Name(own), ast.Add(), value)
                | ast.Call(ast.Attribute(ast.Name(own), "extend"), [value])
            ) if own == name:
                seen += 1
                yield None if name in list_names(value) else value
            case ast.Call(ast.Attribute(ast.Name(own), "append"), [value]) if own == name:
                seen += 1
                inside = (s for s in loops if s.lineno <= node.lineno <= (s.end_lineno or 0))
                yield ast.List([]) if any(_is_parameter(value, s) for s in inside) else None
    named = [n for n in walk(function) if isinstance(n, ast.Name) and n.id == name]
    read = [
        given
        for n in walk(function)
        if isinstance(n, ast.Call) and last_name(n.func) in {"clip_grad_norm_", "len"}
        for given in n.args
        if isinstance(given, ast.Name) and given.id == name
    ]
    if len(named) != seen + len(read) + 1:  # once for the optimizer itself
        yield None


def _words(tree: ast.AST) -> Iterator[str]:
    for node in nodes_of(tree):
        match node:
            case ast.Name(name) | ast.Attribute(_, name):
                yield name
            case ast.arg(name) | ast.keyword(str(name)):
                yield name
            case ast.Import(aliases):
                yield from (part for alias in aliases for part in alias.name.split("."))
            case ast.ImportFrom(module, aliases):
                yield from (module or "").split(".")
                yield from (alias.name for alias in aliases)
