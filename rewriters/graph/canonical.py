"""One spelling for each operation: ``x.pow(2)``, ``x**2`` and ``torch.square(x)`` are one node."""

from __future__ import annotations

from string import ascii_letters
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from npufix.rewriters.graph.nodes import Graph, Node, Serial

# Positional order and defaults of the operators that rules look into. Others keep the order
# in which they were written. ``dim=REQUIRED`` has no default.
_REQUIRED = object()
SIGNATURES: Mapping[str, Mapping[str, Hashable]] = {
    "add": {"other": _REQUIRED, "alpha": 1},
    "argmax": {"dim": None, "keepdim": False},
    "argsort": {"dim": -1, "descending": False},
    "bmm": {"mat2": _REQUIRED},
    "cat": {"dim": 0},
    "chunk": {"chunks": _REQUIRED, "dim": 0},
    "cross_entropy": {
        "target": _REQUIRED,
        "weight": None,
        "size_average": None,
        "ignore_index": -100,
        "reduce": None,
        "reduction": "mean",
        "label_smoothing": 0.0,
    },
    "clamp": {"min": None, "max": None},
    "cumsum": {"dim": _REQUIRED, "dtype": None},
    "div": {"other": _REQUIRED, "rounding_mode": None},
    "dropout": {"p": 0.5, "training": True, "inplace": False},
    "flatten": {"start_dim": 0, "end_dim": -1},
    "gelu": {"approximate": "none"},
    "gather": {"dim": _REQUIRED, "index": _REQUIRED, "sparse_grad": False},
    "group_norm": {"num_groups": _REQUIRED, "weight": None, "bias": None, "eps": 1e-5},
    "index_select": {"dim": _REQUIRED, "index": _REQUIRED},
    "layer_norm": {"normalized_shape": _REQUIRED, "weight": None, "bias": None, "eps": 1e-5},
    "linear": {"weight": _REQUIRED, "bias": None},
    "masked_fill": {"mask": _REQUIRED, "value": _REQUIRED},
    "masked_fill_": {"mask": _REQUIRED, "value": _REQUIRED},
    "matmul": {"other": _REQUIRED},
    "mean": {"dim": None, "keepdim": False, "dtype": None},
    "mul": {"other": _REQUIRED},
    "nonzero": {"as_tuple": False},
    "neg": {},
    "one_hot": {"num_classes": -1},
    "pow": {"exponent": _REQUIRED},
    "reciprocal": {},
    "relu": {"inplace": False},
    "repeat_interleave": {"repeats": _REQUIRED, "dim": None, "output_size": None},
    "rms_norm": {"normalized_shape": _REQUIRED, "weight": None, "eps": None},
    "rsqrt": {},
    "scaled_dot_product_attention": {
        "key": _REQUIRED,
        "value": _REQUIRED,
        "attn_mask": None,
        "dropout_p": 0.0,
        "is_causal": False,
        "scale": None,
        "enable_gqa": False,
    },
    "sigmoid": {},
    "silu": {"inplace": False},
    "softmax": {"dim": None, "dtype": None},
    "split": {"split_size": _REQUIRED, "dim": 0},
    "sqrt": {},
    "square": {},
    "stack": {"dim": 0},
    "squeeze": {"dim": None},
    "sub": {"other": _REQUIRED, "alpha": 1},
    "sum": {"dim": None, "keepdim": False, "dtype": None},
    "t": {},
    "topk": {"k": _REQUIRED, "dim": -1, "largest": True, "sorted": True},
    "transpose": {"dim0": _REQUIRED, "dim1": _REQUIRED},
    "unbind": {"dim": 0},
    "unflatten": {"dim": _REQUIRED, "sizes": _REQUIRED},
    "unsqueeze": {"dim": _REQUIRED},
}

_KEYWORD_ALIASES = {
    "axis": "dim", "keepdims": "keepdim", "input": "self", "tensor": "self", "tensors": "self",
    "split_size_or_sections": "split_size",
}  # fmt: skip
OP_ALIASES = {
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "subtract": "sub",
    "permute_dims": "permute",
    "swapaxes": "transpose",
    "swapdims": "transpose",
    "concat": "cat",
    "concatenate": "cat",
    "mm": "matmul",
    "bitwise_and": "and",
    "bitwise_not": "invert",
    "negative": "neg",
}
COMMUTATIVE = frozenset({"add", "mul", "and", "or", "eq", "ne"})
_CASTS = {
    "float": "torch.float32",
    "half": "torch.float16",
    "bfloat16": "torch.bfloat16",
    "double": "torch.float64",
    "long": "torch.int64",
    "int": "torch.int32",
    "bool": "torch.bool",
}
# The result has the shape of the first operand.
_ONE_BY_ONE = frozenset(
    {"abs", "cast", "clone", "contiguous", "detach", "exp", "log", "neg", "relu", "rsqrt",
     "sigmoid", "softmax", "sqrt", "square", "tanh"}
)  # fmt: skip
# Fields of the named tuples that torch returns.
_FIELDS = {"values": 0, "indices": 1}
PAIRS = frozenset({"topk", "sort", "max", "min", "kthvalue", "mode", "median"})


# Classes of torch.optim that rules exchange. What newer versions have added goes by keyword.
_ALL = {
    "maximize": False, "foreach": None, "capturable": False, "differentiable": False,
}  # fmt: skip
_ADAM = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
CONSTRUCTORS: Mapping[str, Mapping[str, Hashable]] = {
    "Adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0, **_ALL},
    "Adam": {**_ADAM, "weight_decay": 0, "amsgrad": False, **_ALL, "fused": None},
    "AdamW": {**_ADAM, "weight_decay": 1e-2, "amsgrad": False, **_ALL, "fused": None},
    "RMSprop": {
        "lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0, "momentum": 0,
        "centered": False, **_ALL,
    },
    "SGD": {
        "lr": 1e-3, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False, **_ALL,
        "fused": None,
    },
}  # fmt: skip


def constructed(
    graph: Graph, dotted: str, args: Sequence[Node], keywords: Mapping[str, Node], epoch: int
) -> Node:
    """Return the node of an object of a known class; the first argument is what it is made of."""
    values, named = list(args), dict(keywords)
    if "params" in named and not values:
        values.insert(0, named.pop("params"))
    name = dotted.rpartition(".")[2]
    ordered = _in_order(graph, name, CONSTRUCTORS.get(name), values, named)
    if ordered is None:
        keys = tuple(sorted(named))
        return graph.node(dotted, *values, *(named[k] for k in keys), value=keys, epoch=epoch)
    return graph.node(dotted, *ordered, epoch=epoch)


def random_op(  # noqa: PLR0913, PLR0917 - what a call is, and where it stands
    graph: Graph,
    op: str,
    args: Sequence[Node],
    keywords: Mapping[str, Node],
    serial: Serial,
    epoch: int,
) -> Node:
    """Return the node of a call that draws random numbers: no two of them are the same."""
    named = {_KEYWORD_ALIASES.get(key, key): node for key, node in keywords.items()}
    values = list(args)
    if "self" in named:
        values.insert(0, named.pop("self"))
    ordered = _ordered(graph, op, values, named)
    if ordered is not None:
        return graph.node(op, *ordered, value=(serial,), epoch=epoch)
    return graph.node(op, *args, *keywords.values(), value=(serial, *keywords), epoch=epoch)


def tensor_op(
    graph: Graph, op: str, args: Sequence[Node], keywords: Mapping[str, Node], epoch: int
) -> Node:
    """Return the canonical node of a torch call; ``args[0]`` is the tensor it acts on."""
    op = OP_ALIASES.get(op, op)
    named = {_KEYWORD_ALIASES.get(key, key): node for key, node in keywords.items()}
    values = list(args)
    if "self" in named and op != "einsum":
        values.insert(0, named.pop("self"))
    if op in _CASTS and len(values) == 1 and not named:
        return cast(graph, values[0], graph.node("dtype", value=_CASTS[op]), epoch)
    if op in {"to", "type"}:
        wanted = _cast_target(values, named)
        if wanted is not None:
            return cast(graph, values[0], wanted, epoch)
    if op == "type_as" and len(values) == 2 and not named:  # noqa: PLR2004 - self and other
        return cast(graph, values[0], dtype_of(graph, values[1]), epoch)
    if op in {"cat", "stack"} and values and values[0].op == "list":
        values[0] = graph.node("tuple", *values[0].args)
    if op == "einsum" and not named:
        values = _einsum(graph, values)
    ordered = _ordered(graph, op, values, named)
    if ordered is None:
        keys = tuple(sorted(named))
        return graph.node(op, *values, *(named[key] for key in keys), value=keys, epoch=epoch)
    return arithmetic(graph, op, ordered, epoch)


def _einsum(graph: Graph, values: list[Node]) -> list[Node]:
    """Return the arguments of ``einsum("ik, kj -> ij", [a, b])`` as of ``("ab,bc->ac", a, b)``."""
    if len(values) == 2 and values[1].op in {"tuple", "list"}:  # noqa: PLR2004 - with operands
        values = [values[0], *values[1].args]
    if not values or values[0].op != "const" or not isinstance(values[0].value, str):
        return values
    equation = values[0].value.replace(" ", "")
    letters = dict.fromkeys(filter(str.isalpha, equation))
    if len(letters) > len(ascii_letters) or "->" not in equation:
        return values  # without an arrow the order of the letters counts
    plain = str.maketrans(dict(zip(letters, ascii_letters, strict=False)))
    return [graph.constant(equation.translate(plain)), *values[1:]]


def _cast_target(values: list[Node], named: Mapping[str, Node]) -> Node | None:
    """Return the dtype of ``x.to(...)`` if that is all the call asks for."""
    rest = [*values[1:], *named.values()]
    if len(rest) == 1 and set(named) <= {"dtype"} and (named or _is_dtype(rest[0])):
        return rest[0]
    return None


def _is_dtype(node: Node) -> bool:
    """Tell whether a value can only be a dtype: ``torch.float32``, ``x.dtype``, ``self.dtype``."""
    by_name = node.op in {"attr", "param"} and str(node.value).endswith("dtype")
    return by_name or node.op in {"dtype", "dtype_of"}


def cast(graph: Graph, x: Node, dtype: Node, epoch: int) -> Node:
    """Return ``x`` as ``dtype``; two equal casts in a row are one."""
    if x.op == "cast" and x.args[1] is dtype:
        return x
    return graph.node("cast", x, dtype, epoch=epoch)


def dtype_of(graph: Graph, x: Node, epoch: int = 0) -> Node:
    """Return the dtype of ``x`` as a node; that of a cast is the one asked for."""
    return x.args[1] if x.op == "cast" else graph.node("dtype_of", x, epoch=epoch)


def _ordered(
    graph: Graph, op: str, values: list[Node], named: dict[str, Node]
) -> list[Node] | None:
    """Return all arguments in signature order with defaults, ``None`` if they do not fit."""
    if op == "squeeze" and len(values) > 2:  # noqa: PLR2004 - self and one dim
        return None
    return _in_order(graph, op, SIGNATURES.get(op), values, named)


def _in_order(
    graph: Graph,
    op: str,
    signature: Mapping[str, Hashable] | None,
    values: list[Node],
    named: dict[str, Node],
) -> list[Node] | None:
    if signature is None or not values:
        return None if named or signature is None else values
    names = list(signature)
    given = dict(zip(names, values[1:], strict=False))
    if len(values) - 1 > len(names) or set(given) & set(named) or set(named) - set(names):
        return None
    given |= named
    # The last dimension of a result that has one more is another one.
    of_dim = None if op in {"stack", "unsqueeze"} else values[0]
    result = [values[0]]
    for name, default in signature.items():
        if name in given:
            is_dim = name == "dim"
            result.append(_plain_dim(graph, given[name], of_dim) if is_dim else given[name])
        elif default is _REQUIRED:
            return None
        else:
            result.append(graph.constant(default))
    return result


def _plain_dim(graph: Graph, dim: Node, x: Node | None) -> Node:
    """Return ``(-1,)`` and ``x.ndim - 1`` as ``-1``."""
    if dim.op == "tuple" and len(dim.args) == 1:
        return dim.args[0]
    if dim.op == "sub" and dim.args[0].op == "rank" and _is(dim.args[1], 1):
        parts = x.args if x is not None and x.op in {"tuple", "list"} else (x,)  # of ``cat``
        is_last = any(_is_rank_of(dim.args[0], part) for part in parts)
        return graph.constant(-1) if is_last else dim
    return (
        graph.constant(dim.value[0])
        if (dim.op == "const" and isinstance(dim.value, tuple) and len(dim.value) == 1)
        else dim
    )


def _is_rank_of(rank: Node, x: Node | None) -> bool:
    """Tell whether a number of dimensions is that of a tensor, as far as nothing reshapes it."""
    while x is not None and x is not rank.args[0] and x.op in _ONE_BY_ONE:
        x = x.args[0]
    return x is rank.args[0] and rank.epoch == 0


def arithmetic(  # noqa: PLR0911 - one case a spelling
    graph: Graph, op: str, args: Sequence[Node], epoch: int
) -> Node:
    """Return the canonical node of an operator, spelled out or as a symbol."""
    x = args[0]
    if op in {"add", "sub"} and len(args) == 3 and _is(args[2], 1):  # noqa: PLR2004 - alpha
        args = args[:2]
    if op == "div" and len(args) == 3 and _is(args[2], None):  # noqa: PLR2004 - rounding_mode
        args = args[:2]
    match op:
        case "pow" if _is(args[1], 2):
            return graph.node("square", x, epoch=epoch)
        case "pow" if _is(args[1], -0.5):
            return graph.node("rsqrt", x, epoch=epoch)
        case "pow" if _is(args[1], 0.5):
            return graph.node("sqrt", x, epoch=epoch)
        case "mul" if x is args[1]:
            return graph.node("square", x, epoch=epoch)
        case "reciprocal" if x.op == "sqrt":
            return graph.node("rsqrt", x.args[0], epoch=epoch)
        case "div" if len(args) == 2 and args[1].op == "sqrt":  # noqa: PLR2004
            inverse = graph.node("rsqrt", args[1].args[0], epoch=epoch)
            return inverse if _is(x, 1) else graph.node("mul", x, inverse, epoch=epoch)
        case "neg" if x.op == "const" and isinstance(x.value, (int, float)):
            return graph.constant(-x.value)
    return graph.node(op, *args, epoch=epoch)


def new_axis(graph: Graph, base: Node, index: Node, epoch: int) -> Node | None:
    """Return ``x[:, None]`` as ``x.unsqueeze(1)``, nothing for any other subscript."""
    items = index.args if index.op == "tuple" else (index,)
    new = [place for place, item in enumerate(items) if _is_constant(item, None)]
    first = bool(items) and _is_constant(items[0], ...)
    rest = [item for item in items[first:] if not _is_constant(item, None)]
    if len(new) != 1 or not all(map(_is_whole, rest)):
        return None
    dim = new[0] - len(items) if first else new[0]
    return graph.node("unsqueeze", base, graph.constant(dim), epoch=epoch)


def _is_whole(index: Node) -> bool:
    return index.op == "slice" and all(_is_constant(part, None) for part in index.args)


def _is_constant(node: Node, value: object) -> bool:
    return node.op == "const" and node.value is value


def field_of(graph: Graph, base: Node, name: str) -> Node | None:
    """Return ``topk(...).indices`` as item 1 of the pair."""
    if base.op in PAIRS and name in _FIELDS:
        return graph.node("item", base, value=_FIELDS[name])
    return None


def _is(node: Node, value: object) -> bool:
    return node.op == "const" and not isinstance(node.value, bool) and node.value == value
