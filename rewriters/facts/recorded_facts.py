"""Answers the questions of a rule's conditions from what a profile recorded at the lines."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.rewriters.facts.index_facts import names_of
from npufix.rewriters.facts.kinds.value_kinds import speaks_of_positions
from npufix.rewriters.facts.shapes import Shapes
from npufix.rewriters.facts.site_facts import SourceFacts
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Node
    from npufix.rewriters.match.matching import Match
    from npufix.rewriters.match.recorded_call import RecordedCall

_ATEN_NAMES: Mapping[str, tuple[str, ...]] = {
    Op.SETITEM: ("aten::index_put_",),
    Op.CAST: ("aten::to", "aten::_to_copy"),
}
# Indexing with a mask looks for its positions first: nothing but that does it unasked.
_FIND_POSITIONS = frozenset({"aten::nonzero", "NonZero"})
_INDEXED_KERNEL = re.compile(r"(IndexPut|Index|LinearIndex)(ByTensor|WithSort)?(V\d+)?")
# What else in a line may ask for positions, or hide an operator that does.
_MAY_FIND_POSITIONS = frozenset(
    {"nonzero", "where", "masked_select", "argwhere", "unique", "repeat_interleave", Op.CALL}
)
_INDEXING = frozenset({Op.SETITEM, Op.GETITEM})
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


def aten_names(node: Node) -> tuple[str, ...]:
    """Return the names under which the profiler records an operation."""
    return _ATEN_NAMES.get(node.op) or operators.aten_names(node.op)


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
                    if arg.op == "t":  # a view; the dump may hold only the product that reads it
                        self._types.setdefault(arg.args[0], set()).add(dtype)
                        self._dims.setdefault(arg.args[0], set()).add(dims and dims[::-1])
                    if arg.op == Op.CAST and arg.args[1].op == Op.DTYPE_OF:
                        # ``y.to(x.dtype)`` was recorded, so the dtype of ``x`` is known.
                        self._types.setdefault(arg.args[1].args[0], set()).add(dtype)
        self._indexed: set[Node] = set()
        self._positions: set[Node] = set()
        for node in {e.node for e in flow.evaluations if e.node.op in _INDEXING}:
            self._read_indexing(node, recorded)
        ranks = {
            node: len(next(iter(shapes)) or ())
            for node, shapes in self._dims.items()
            if None not in shapes and len({len(shape or ()) for shape in shapes}) == 1
        }
        self.shapes = Shapes(flow, {**ranks, **match.evaluation.ranks})
        self._was_run = bool(self._calls(match.evaluation.node, recorded))

    def runs_often(self) -> bool:
        """Tell whether it runs in each step: so it does where the recorded steps show it."""
        return self._was_run or super().runs_often()

    def runs_in_loop(self) -> bool:
        """Tell whether a loop or the recorded steps show that it is worth a change."""
        return self._was_run or super().runs_in_loop()

    def _read_indexing(self, node: Node, recorded: Mapping[int, Sequence[RecordedCall]]) -> None:
        """Take from the kernels of ``x[i]`` that ``x`` is a tensor, and that ``i`` is a mask.

        ``y[pad] = 0`` that launched IndexPutV2 and, before it, a NonZero of a BOOL tensor of shape
        4,5: then ``pad`` is a mask of that shape, whatever it is called.
        """
        lines = self.flow.lines.get(node, frozenset())
        others = {e.node for e in self.flow.evaluations} - {node}
        beside = [o for o in others if self.flow.lines.get(o, frozenset()) & lines]
        index = _only_index(node.args[1])
        if any(o.op in _MAY_FIND_POSITIONS or _has_index(o) for o in beside):
            return
        calls = [call for line in lines for call in recorded.get(line, ())]
        if any(_INDEXED_KERNEL.fullmatch(call.name) for call in calls):
            self._indexed.add(node.args[0])
        found = [call for call in calls if call.name in _FIND_POSITIONS]
        if index is not None and not found and node.args[0] in self._indexed:
            self._positions.add(index)
        if index is None or not found or any(call.types[:1] != ("bool",) for call in found):
            return
        # ``index_put_`` itself tells no more than that it got a list.
        self._types[index] = self._types.get(index, set()) - {"TensorList", ""} | {"bool"}
        shapes = {call.dims[0] for call in found if call.dims}
        self._dims[index] = self._dims.get(index, set()) - {None} | shapes

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

    def _is_mask(self, node: Node) -> bool | None:
        """Tell it from the kernels too: an index that is called one and was looked up nowhere."""
        known = super()._is_mask(node)
        names = names_of(node, self.match.evaluation.names)
        called = node in self._positions and speaks_of_positions(names)
        return False if known is None and called else known

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
        if known is None and node in self._indexed:
            return True
        return True if known is None and self._dims.get(node, {None}) != {None} else known

    def same_dtype(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors have one dtype."""
        known = super().same_dtype(first, second)
        if known is not None:
            return known
        left, right = (self._types.get(self.match.bindings[n], set()) for n in (first, second))
        return left == right if len(left) == 1 == len(right) else None


def _only_index(node: Node) -> Node | None:
    """Return the one thing that may be a tensor in an index, ``pad`` of ``x[..., pad]``."""
    parts = node.args if node.op == Op.TUPLE else (node,)
    known = {Op.CONST, Op.SLICE, Op.COUNTER, Op.SIZE}
    tensors = [part for part in parts if part.op not in known]
    return tensors[0] if len(tensors) == 1 else None


def _has_index(node: Node) -> bool:
    return node.op in _INDEXING and _only_index(node.args[1]) is not None
