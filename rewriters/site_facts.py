"""Answers the questions of a rule's conditions at one place, from the source or the dump."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.attributes import is_int_attribute, is_plain_attribute
from npufix.rewriters.shapes import SAME_SHAPE, RelativeRank, Shapes, annotation
from npufix.rewriters.torch_names import TORCH_FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.dataflow import Evaluation, FunctionFlow
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
    {"unsqueeze", "masked_fill", "masked_fill_", "log_softmax", "rsqrt", "permute", "contiguous",
     "detach", "index_select", "cast", "new_zeros", "new_ones", "type_as"}
)  # fmt: skip
_NO_TENSOR = frozenset({"const", "tuple", "list", "slice", "size", "shape", "opaque"})
_INTEGERS = frozenset(
    {"arange", "argmax", "argmin", "argsort", "nonzero", "randint", "randperm", "item"}
)
_MAYBE_NUMBER = frozenset({"param", "attr", "global", "phi", "element", "neg", "carried", "after"})
_TENSOR_ANNOTATION = re.compile(r"(Optional\[)?[\w.]*Tensor\]?( \| None)?")
_CREATED_SOMEWHERE = frozenset(
    {
        "arange",
        "empty",
        "eye",
        "full",
        "linspace",
        "ones",
        "rand",
        "randint",
        "randn",
        "randperm",
        "tensor",
        "zeros",
    }
)
_TAKES_ANYTHING = re.compile(r"is_|tensor$|as_|from_|get_|set_|full|arange|zeros$|ones$|empty$")
_INDEX_NAME = re.compile(r"idx|indices|index|(^|_)(ind|inds|ids|id)(_|$)")
_MASK_NAME = re.compile(r"mask|pad|valid|ignore|(^|_)(is|keep|bad|pos|neg)(_|$)")
_LAST = -1


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

    def is_argument(self, name: str) -> bool:
        """Tell whether the value is an argument of the function."""
        return self.match.bindings[name].op == "param"

    def is_plain(self, name: str) -> bool | None:
        """Tell whether the value is a setting: a literal, a parameter, an attribute from one."""
        node = self.match.bindings[name]
        if node.op in {"const", "global"} or _finfo_dtype(node) is not None:
            return True
        if node.op == "attr":
            return is_plain_attribute(self.flow, node)
        return node.op == "param" and not self._is_tensor(node)

    def same_device(self, first: str, second: str) -> bool | None:
        """Tell whether nothing suggests that two tensors are on different devices."""
        for name in (first, second):
            for node in self.match.bindings[name].walk():
                keywords = node.value if isinstance(node.value, tuple) else ()
                if node.op.removesuffix("(*)") in _CREATED_SOMEWHERE and "device" not in keywords:
                    return None
                if node.op in {"cpu", "cuda", "to", "npu"}:
                    return None
        return True

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
        if _TENSOR_ANNOTATION.fullmatch(declared):
            return True
        if declared in {"int", "float", "bool", "str", "np.ndarray", "numpy.ndarray"}:
            return False
        if any(user.node.args[0] is node for user in self._certain_users()):
            return True
        if node.op == "attr" and self.shapes.shape(node) is not None:
            return True
        if node.op in _KEEPS_TENSOR:
            return self._is_tensor(node.args[0])
        return None

    def _certain_users(self) -> Iterator[Evaluation]:
        """Yield the operations that the site's path always runs and that only tensors have."""
        site = self.match.evaluation.statement
        last = site.end_lineno or site.lineno
        for evaluation in self.flow.evaluations:
            before = evaluation.code.lineno <= last and evaluation.certain
            if before and evaluation.node.args and self._proves_tensor(evaluation):
                # its block is the one of the site, or one around it
                ends = ((s.lineno, s.end_lineno or s.lineno) for s in evaluation.block)
                if any(first <= site.lineno and last <= end for first, end in ends):
                    yield evaluation

    def _proves_tensor(self, evaluation: Evaluation) -> bool:
        if evaluation.node.op in _PROVES_TENSOR:
            return True
        # A function of torch takes nothing but tensors, unless it asks or converts.
        code = evaluation.code
        dotted = self.flow.names.dotted(code.func) if isinstance(code, ast.Call) else None
        module, _, name = (dotted or "").rpartition(".")
        return module in TORCH_FUNCTIONS and not _TAKES_ANYTHING.match(name)

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
            if isinstance(node.value, tuple) and "out" in node.value:
                return False
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

    def is_centred(self, name: str) -> bool | None:
        """Tell whether a mean was subtracted to get the value."""
        return any(
            node.op == "sub" and any(part.op == "mean" for part in node.args[1].walk())
            for node in self.match.bindings[name].walk()
        )

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
        return False if _TENSOR_ANNOTATION.fullmatch(declared) else None

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
        source = node.args[0] if node.op == "item" else node
        if source.epoch != self.match.evaluation.node.epoch:
            return None  # something may have been written into the indices since
        if node.op == "item" and node.value == 1 and node.args[0].op == "topk":
            return True if node.args[0].args[2].value == _LAST else None
        if node.op == "argsort":
            return True if node.args[1].value == _LAST else None
        return True if node.op == "randperm" else None
