"""Answers the questions of a rule's conditions at one place, from the source or the dump."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.attributes import is_int_attribute
from npufix.rewriters.shapes import SAME_SHAPE, RelativeRank, Shapes, annotation

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.rewriters.dataflow import FunctionFlow
    from npufix.rewriters.matching import Match
    from npufix.rewriters.nodes import Node

_BOOLEAN = frozenset(
    {"eq", "ne", "lt", "le", "gt", "ge", "isnan", "isinf", "isfinite", "logical_not",
     "logical_and", "logical_or", "logical_xor", "compare"}
)  # fmt: skip
_BOOLEAN_IF_OPERANDS_ARE = frozenset({"and", "or", "xor", "invert"})
_KEEPS_DTYPE = frozenset(
    {"view", "reshape", "expand", "unsqueeze", "squeeze", "getitem", "transpose", "permute",
     "contiguous", "clone", "detach", "tril", "triu", "flatten", "t", "cpu", "flip", "roll"}
)  # fmt: skip
_KEEPS_TENSOR = (
    _KEEPS_DTYPE
    | SAME_SHAPE
    | {
        "add",
        "sub",
        "mul",
        "div",
        "pow",
        "item",
        "sum",
        "mean",
        "square",
        "matmul",
        "gather",
        "cast",
    }
)
_CREATES_TENSOR = frozenset(
    {"zeros", "ones", "rand", "randn", "empty", "full", "arange", "tensor", "linear", "embedding",
     "cat", "stack", "where", "one_hot", "topk", "randint", "randperm", "masked_fill", "softmax",
     "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "bernoulli", "new_zeros",
     "new_ones", "new_full"}
)  # fmt: skip
# The first argument of these can only be a tensor: NumPy arrays and lists have no such method.
_PROVES_TENSOR = frozenset(
    {"unsqueeze", "masked_fill", "masked_fill_", "softmax", "log_softmax", "rsqrt", "gather",
     "expand", "permute", "contiguous", "detach", "index_select", "device_of", "clone", "cast",
     "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "empty_like", "new_zeros"}
)  # fmt: skip
_ATEN_NAMES = {
    "square": ("aten::pow", "aten::square"),
    "setitem": ("aten::index_put_",),
    "cast": ("aten::to", "aten::_to_copy"),
    "matmul": ("aten::matmul", "aten::mm"),
    "invert": ("aten::bitwise_not",),
    "and": ("aten::bitwise_and", "aten::__and__"),
    "or": ("aten::bitwise_or", "aten::__or__"),
}
_NO_TENSOR = frozenset({"const", "tuple", "list", "slice", "size", "shape", "opaque"})
_INTEGERS = frozenset(
    {"arange", "argmax", "argmin", "argsort", "nonzero", "randint", "randperm", "item"}
)
_MAYBE_NUMBER = frozenset({"param", "attr", "global", "phi", "element", "neg", "carried", "after"})
_INDEX_NAME = re.compile(r"idx|indices|index|(^|_)(ind|inds|ids|id)(_|$)")
_MASK_NAME = re.compile(r"mask|pad|valid|ignore|(^|_)(is|keep|bad|pos|neg)(_|$)")
_LAST = -1
# The names that the profiler writes.
_DTYPES = {
    "double": "float64",
    "float": "float32",
    "c10::Half": "float16",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """The arguments of one operator call as the dump recorded them at a line."""

    name: str
    dims: tuple[tuple[int, ...] | None, ...]
    """One entry per argument; ``None`` where it is no tensor."""
    types: tuple[str, ...]


def aten_names(node: Node) -> tuple[str, ...]:
    """Return the names under which the profiler records an operation."""
    return _ATEN_NAMES.get(node.op, (f"aten::{node.op}",))


def _finfo_dtype(node: Node) -> Node | None:
    """Return the dtype of ``torch.finfo(dtype).min``."""
    if node.op == "attr" and node.args[0].op == "finfo" and len(node.args[0].args) == 1:
        return node.args[0].args[0]
    return None


class SourceFacts:
    """What the source proves; implements ``npufix.rules.substitution.Site``."""

    def __init__(self, flow: FunctionFlow, match: Match) -> None:
        self.flow = flow
        self.match = match
        self.shapes = Shapes(flow, match.evaluation.ranks)

    def literal(self, name: str) -> object:
        """Return the literal that a variable matched, ``None`` if it is no literal."""
        node = self.match.bindings[name]
        return node.value if node.op == "const" else None

    def ndim(self, name: str) -> int | None:
        """Return the number of dimensions of a tensor."""
        rank = self.shapes.rank(self.match.bindings[name])
        return rank if isinstance(rank, int) else None

    def size(self, name: str, dim: int) -> int | None:
        """Return the length of one dimension, if it is a known number."""
        node = self.match.bindings[name]
        if dim == _LAST:
            return self.shapes.last(node)
        shape = self.shapes.shape(node)
        return shape[dim] if shape is not None and -len(shape) <= dim < len(shape) else None

    def is_tensor(self, name: str) -> bool | None:
        """Tell whether the value is a torch tensor."""
        return self._is_tensor(self.match.bindings[name])

    def _is_tensor(self, node: Node) -> bool | None:  # noqa: PLR0911 - one case a kind of proof
        if node.op in _CREATES_TENSOR or self._is_bool(node):
            return True
        if node.op in {"const", "tuple", "list", "size", "shape"}:
            return False
        declared = self._annotation(node)
        if declared:
            return bool(re.search(r"Tensor\b", declared))
        if any(user.args[0] is node for user in self._users() if user.op in _PROVES_TENSOR):
            return True
        if node.op == "attr" and self.shapes.shape(node) is not None:
            return True
        if node.op in _KEEPS_TENSOR:
            return self._is_tensor(node.args[0])
        return None

    def _users(self) -> list[Node]:
        return [e.node for e in self.flow.evaluations if e.node.args]

    def _annotation(self, node: Node) -> str:
        return annotation(self.flow, str(node.value)) if node.op == "param" else ""

    def is_bool_tensor(self, name: str) -> bool | None:
        """Tell whether the value is a tensor of dtype bool."""
        node = self.match.bindings[name]
        if self._is_bool(node):
            return True
        if node.op in _NO_TENSOR or node.op in _INTEGERS or self._is_int(node):
            return False
        if node.op == "cast" and "int" in str(node.args[1].value):
            return False
        # Most subscripts are integers; only a name that speaks of a mask leaves it open.
        names = [str(n.value) for n in node.walk() if n.op in {"param", "attr", "global"}]
        names += [n for n, v in self.match.evaluation.names.items() if v is node]
        if any(_INDEX_NAME.search(n) for n in names):
            return False
        return None if any(_MASK_NAME.search(n) for n in names) else False

    def _is_bool(self, node: Node) -> bool:  # noqa: PLR0911 - one case a kind of proof
        args = node.args
        if node.op in _BOOLEAN:
            # Only a comparison with a tensor is a tensor: ``n == 3`` is a Python bool.
            return any(self._may_be_compared(arg) for arg in args)
        if node.op in _BOOLEAN_IF_OPERANDS_ARE:
            return all(map(self._is_bool, args))
        if node.op == "cast":
            return args[1].value == "torch.bool"
        if node.op in _KEEPS_DTYPE:
            return self._is_bool(args[0])
        if node.op in {"zeros", "ones", "zeros_like", "ones_like", "full", "full_like", "tensor"}:
            return any(arg.op == "dtype" and arg.value == "torch.bool" for arg in args)
        if node.op == "phi":
            return self._is_bool(args[1]) and self._is_bool(args[2])
        return self._annotation(node).endswith("BoolTensor")

    def _may_be_compared(self, node: Node) -> bool:
        return not self.shapes.is_number(node) and self._is_tensor(node) is True

    def dtype(self, name: str) -> str | None:
        """Return the dtype of a tensor."""
        return self._dtype(self.match.bindings[name])

    def _dtype(self, node: Node) -> str | None:
        if self._is_bool(node):
            return "bool"
        if node.op == "cast" and node.args[1].op == "dtype":
            return str(node.args[1].value).removeprefix("torch.")
        if node.op in _KEEPS_DTYPE or node.op in {"masked_fill", "softmax", "relu"}:
            return self._dtype(node.args[0])
        return None

    def is_number(self, name: str) -> bool | None:
        """Tell whether the value is a Python number."""
        node = self.match.bindings[name]
        if self.shapes.is_number(node) or _finfo_dtype(node) is not None:
            return True
        # What a call or an operator returns is rarely a number, and then not ours to write.
        return None if node.op in _MAYBE_NUMBER else False

    def is_limit_of(self, name: str, tensor: str) -> bool | None:
        """Tell whether a number is the ``finfo(x.dtype).min`` or ``max`` of a tensor."""
        dtype = _finfo_dtype(self.match.bindings[name])
        x = self.match.bindings[tensor]
        return dtype is not None and dtype.op == "dtype_of" and dtype.args[0] is x

    def is_detached(self, name: str) -> bool | None:
        """Tell whether gradients are cut off on purpose."""
        return any(n.op in {"data", "detach"} for n in self.match.bindings[name].walk())

    def is_int(self, name: str) -> bool | None:
        """Tell whether the value is a Python int."""
        return self._is_int(self.match.bindings[name])

    def _is_int(self, node: Node) -> bool | None:
        if node.op == "const":
            return isinstance(node.value, int) and not isinstance(node.value, bool)
        if node.op in {"size", "rank", "py:len", "py:int"}:
            return True
        if node.op in {"add", "sub", "mul", "floordiv", "mod", "neg"}:
            return True if all(map(self._is_int, node.args)) else None
        if node.op == "attr":
            return is_int_attribute(self.flow, node)
        declared = self._annotation(node)
        if declared == "int":
            return True
        return False if re.search(r"Tensor\b", declared) else None

    def same_dtype(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors have one dtype."""
        left, right = (self.match.bindings[name] for name in (first, second))
        casts = [n.args[1] if n.op == "cast" else None for n in (left, right)]
        return True if left is right or (casts[0] is not None and casts[0] is casts[1]) else None

    def same_ndim(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors have one number of dimensions."""
        left, right = (self.shapes.rank(self.match.bindings[name]) for name in (first, second))
        if isinstance(left, int) and isinstance(right, int):
            return left == right
        if isinstance(left, RelativeRank) and isinstance(right, RelativeRank):
            return left.more == right.more if left.base is right.base else None
        return None

    def is_unique(self, name: str) -> bool | None:
        """Tell whether the entries along the last dimension are all different."""
        node = self.match.bindings[name]
        while node.op == "cast":
            node = node.args[0]
        if node.op == "item" and node.value == 1 and node.args[0].op == "topk":
            return True if node.args[0].args[2].value == _LAST else None
        if node.op == "argsort":
            return True if node.args[1].value == _LAST else None
        return True if node.op == "randperm" else None


class RecordedFacts(SourceFacts):
    """Adds what held in every recorded call of the profiled run."""

    def __init__(
        self, flow: FunctionFlow, match: Match, recorded: Mapping[int, Sequence[RecordedCall]]
    ) -> None:
        super().__init__(flow, match)
        self._dims: dict[Node, set[tuple[int, ...] | None]] = {}
        self._types: dict[Node, set[str]] = {}
        for node in {e.node for e in flow.evaluations}:
            for call in self._calls(node, recorded):
                for arg, dims, dtype in zip(node.args, call.dims, call.types, strict=False):
                    self._dims.setdefault(arg, set()).add(dims)
                    self._types.setdefault(arg, set()).add(dtype)
                    if arg.op == "cast" and arg.args[1].op == "dtype_of":
                        # ``y.to(x.dtype)`` was recorded, so the dtype of ``x`` is known.
                        self._types.setdefault(arg.args[1].args[0], set()).add(dtype)
        ranks = {
            node: len(next(iter(shapes)) or ())
            for node, shapes in self._dims.items()
            if None not in shapes and len({len(shape or ()) for shape in shapes}) == 1
        }
        self.shapes = Shapes(flow, {**ranks, **match.evaluation.ranks})

    def _calls(
        self, node: Node, recorded: Mapping[int, Sequence[RecordedCall]]
    ) -> list[RecordedCall]:
        """Return the recorded calls that computed ``node``; none if another may have."""
        lines = self.flow.lines.get(node, frozenset())
        twins = [e.node for e in self.flow.evaluations if e.node.op == node.op]
        if any(other is not node and self.flow.lines.get(other, lines) & lines for other in twins):
            return []
        names = aten_names(node)
        return [call for line in lines for call in recorded.get(line, ()) if call.name in names]

    def _only(self, name: str) -> tuple[int, ...] | None:
        """Return the one shape that a tensor always had."""
        shapes = self._dims.get(self.match.bindings[name], set())
        return next(iter(shapes)) if len(shapes) == 1 else None

    def _dtype(self, node: Node) -> str | None:
        types = self._types.get(node, set())
        known = super()._dtype(node)
        return _DTYPES.get(next(iter(types))) if known is None and len(types) == 1 else known

    def _is_bool(self, node: Node) -> bool:
        return self._types.get(node) == {"bool"} or super()._is_bool(node)

    def size(self, name: str, dim: int) -> int | None:
        """Return the length of one dimension, if it is a known number."""
        known = super().size(name, dim)
        shape = self._only(name)
        if known is None and shape is not None and -len(shape) <= dim < len(shape):
            return shape[dim]
        return known

    def _is_tensor(self, node: Node) -> bool | None:
        known = super()._is_tensor(node)
        return True if known is None and self._dims.get(node, {None}) != {None} else known

    def same_dtype(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors have one dtype."""
        known = super().same_dtype(first, second)
        if known is not None:
            return known
        left, right = (self._types.get(self.match.bindings[n], set()) for n in (first, second))
        return left == right if len(left) == 1 == len(right) else None
