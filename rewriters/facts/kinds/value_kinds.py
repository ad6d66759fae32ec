"""What kind of value the source proves something to be: a tensor, a mask, an int."""

from __future__ import annotations

import re
from functools import cached_property
from typing import TYPE_CHECKING

from npufix.rewriters.facts.annotations import annotation
from npufix.rewriters.facts.index_facts import (
    INT_ANNOTATION,
    are_found_positions,
    is_count,
    is_of_configuration,
    is_position,
    is_selection,
    is_used_as_index,
    is_used_as_int,
    names_of,
)
from npufix.rewriters.facts.kinds.arrays import is_of_numpy, list_given_to_numpy
from npufix.rewriters.facts.kinds.uses import (
    list_iterated,
    list_masks,
    list_tensors,
    proves_tensor,
)
from npufix.rewriters.facts.module_facts import is_parameter, returns_tensor
from npufix.rewriters.facts.origins import left_out, list_holding_none, list_of_other_classes
from npufix.rewriters.facts.shapes import SAME_SHAPE, Shapes
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import is_int_attribute
from npufix.rewriters.graph.nodes import once_per_value
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Evaluation, Node
    from npufix.rewriters.match.matching import Match

_BOOLEAN = operators.BOOLEAN | {Op.COMPARE}
# Tests that only functions of torch make: a comparison may be one of NumPy arrays or numbers.
_TESTS = operators.BOOLEAN - operators.SYMBOLS
# The product of two masks is one.
_BOOLEAN_IF_OPERANDS_ARE = frozenset({"add", "and", "or", "xor", "invert", "mul"})
_OF_NUMBERS_TOO = frozenset({"add", "mul"})
_BOOLEAN_IF_FIRST_IS = frozenset({"any", "all", "scatter", "index_fill", "masked_fill"})
_TAKES_DTYPE = (operators.FRESH | operators.FACTORIES) - {"clone"}
KEEPS_DTYPE = operators.KEEPS | {"tril", "triu", Op.GETITEM, Op.AGAIN, Op.AUGMENTED}
_KEEPS_TENSOR = (
    KEEPS_DTYPE
    | SAME_SHAPE
    | {Op.ITEM, "all", "amax", "amin", "any", "argmax", "argmin", "clamp", "count_nonzero",
       "cumprod", "linalg.norm", "linalg.vector_norm", "logsumexp", "max", "mean", "min", "norm",
       "prod", "scatter_add", "sort", "std", "sum", "var"}
)  # fmt: skip
# A tensor if one of the operands is, and the other one a number or a tensor too.
_ARITHMETIC = frozenset({"add", "sub", "mul", "div", "pow", "floordiv", "mod", "matmul"})
_OF_OPERANDS = _ARITHMETIC | (operators.BROADCAST - _KEEPS_TENSOR)
_NO_MASKS = frozenset(
    {Op.CONST, Op.CONTAINER, Op.TUPLE, Op.LIST, Op.SLICE, Op.SIZE, Op.SHAPE, Op.OPAQUE,
     "multinomial", "randint", "randperm", "searchsorted", "bucketize",  # positions
     "sub", "div", "floordiv", "mod", "pow"}
)  # fmt: skip
_OF_SHAPED = (Op.SHAPE, Op.SIZE, Op.RANK, Op.DTYPE_OF)
"""What no number is asked for."""
_DISPLAYS = ("Dict", "Set(")
_PARTS = frozenset({"chunk", "split", "split_with_sizes", "tensor_split", "unbind"})
_INTEGERS = operators.INTEGERS | {Op.ITEM}
_MAYBE_NUMBER = frozenset(
    {Op.PARAM, Op.ATTR, Op.GLOBAL, Op.PHI, Op.ELEMENT, "neg", Op.CARRIED, Op.AFTER}
)
_TENSOR_ANNOTATION = re.compile(r"(Optional\[)?[\w.]*Tensor\]?( \| None)?")
OF_ARRAY = re.compile(
    r"(Optional\[)?((np|numpy)\.ndarray|(npt\.|numpy\.typing\.)?(NDArray|ArrayLike))(\[.*\])?\]?"
    r"( \| None)?"
)
"""How a parameter is declared that is an array of NumPy."""
_TABLE = re.compile(r"(?:typing\.|t\.)?(?:[Dd]ict|(?:Mutable)?Mapping)\[str, ([\w.]*Tensor)\]")
_LISTED = re.compile(
    r"(?:typing\.|t\.)?(?:[Ll]ist|Sequence|[Tt]uple)\[([\w.]*Tensor)(?:, \.\.\.)?\]"
)
_PART_OF = frozenset({Op.ELEMENT, Op.GETITEM, Op.ITEM})
_INDEX_NAME = re.compile(
    r"(?<!mask_)(?<!masked_)(?<!channel_)(idx|indices|index)|(^|_)(ind|inds|ids|id)(_|$)|^i_|_list$"
)
_ANY_INDEX = re.compile(r"(^|_)(idx|index)$|^(inds?|ids|indices)$")
"""What an index is called of either kind; ``token_ids`` and ``top_indices`` are positions."""
_TENSOR_NAME = re.compile(r"(^|_)(emb(ed(ding)?)?|feat(ure)?|hidden|logit|tensor)s?(_states?)?$")
"""Of what has a row for each position."""
_SEVERAL = re.compile(r"^(?!num_|n_)\w*s$")
"""Of what a result holds for each row, and is no count: ``num_classes``."""
_MASK_NAME = re.compile(
    r"mask|pad.|valid(?!at)|ignore|(^|_)(is|has|keep|bad|pos|neg|flags?|done|inside|outside)(_|$)"
)
_KEY_NAME = re.compile(r"(^|_)(keys?|names?|slices?)$")
"""Of strings and of slices, whatever they are of: ``padding_key``, ``padding_slice``."""
# What numbers, keys and slices are called.
_COUNTING_NAME = re.compile(
    r"[a-z]\d?|\w*(key|name|num|step|start|end|begin|stop|row|col|column|offset|slot|slice|sl"
    r"|layer|head|batch|rank|level|epoch|dim|axis|size|len|length|count|channel|block|page|line"
    r"|side|part|stage|bucket|shard|chunk|group|which|where|at|item|field|attr|option)s?",
)
_ZEROS = frozenset({"new_zeros", "zero", "zeros", "zeros_like"})
# Methods of a dictionary, and what else returns a number.
_RETURNS_NUMBER = re.compile(r"(^|_)(pad|unk|eos|bos|mask|blank)(_|$)")


def speaks_of_positions(names: Iterable[str]) -> bool:
    """Tell whether a value is called an index: ``idx``, ``keep_ids``."""
    return any(map(_INDEX_NAME.search, names))


class ValueKinds:
    """Answers of ``SourceFacts`` about the kind of a value."""

    flow: FunctionFlow
    match: Match
    shapes: Shapes

    @once_per_value
    def _is_tensor(self, node: Node) -> bool | None:  # noqa: C901, PLR0911, PLR0912 - one case a proof
        if node.op in operators.TENSORS or self._is_bool(node):
            return True
        if node.op in {Op.CONST, Op.TUPLE, Op.LIST, Op.SIZE, Op.SHAPE} or is_of_numpy(node):
            return False
        if node in list_given_to_numpy(self.flow):
            return False
        if node.op == Op.CONTAINER or str(node.value).startswith(_DISPLAYS):
            return False
        if node.op == Op.PARAM and node.value in list_holding_none(self.flow):
            return False  # a list, whatever it is declared as
        declared = self._annotation(node)
        if _TENSOR_ANNOTATION.fullmatch(declared):
            return True
        if declared in {"int", "float", "bool", "str"} or OF_ARRAY.fullmatch(declared):
            return False
        if node.op == Op.PARAM and "tensordict" in f"{node.value} {declared}".lower():
            return False
        if node.op == Op.PARAM and node.value in list_of_other_classes(self.flow):
            return False
        if node in self._operands_of_tensors or returns_tensor(self.flow, node):
            return True
        if node.op in _PARTS:
            return False  # a tuple, whose elements are tensors
        if node.op in {Op.ITEM, Op.GETITEM} and node.args[0].op in _PARTS:
            return self._is_tensor(node.args[0].args[0])
        if node.op == Op.ATTR and (
            self.shapes.shape(node) is not None or is_parameter(self.flow, node)
        ):
            return True
        if node.op == Op.ELEMENT:  # a row of a tensor is one
            rows = list_iterated(self.flow, node)
            return True if rows and all(r and self._is_tensor(r) for r in rows) else None
        if node.op in _OF_OPERANDS:
            kinds = [self._is_tensor(arg) for arg in node.args if not self._can_be_number(arg)]
            if False in kinds:
                return None if len({*kinds}) > 1 else False
            return True if True in kinds else None
        if node.op == Op.PHI:
            if self._can_be_number(node):
                return False  # ``self.gate.tanh() if self.gated else 1``
            given = left_out(node.args[0])
            kinds = [self._is_tensor(one) for one in list_choices(node) if one is not given]
            return kinds[0] if kinds and len({*kinds}) == 1 else None
        if node.op not in _KEEPS_TENSOR or node.args[0].op in {Op.LIST, Op.TUPLE}:
            return None
        return self._is_tensor(node.args[0])

    @cached_property
    def _operands_of_tensors(self) -> frozenset[Node]:
        """Return what the site's path always does something with that only tensors have."""
        site = self.match.evaluation.statement
        return list_tensors(self.flow, site, self._counts, self._is_plain_number)

    def _is_plain_number(self, node: Node) -> bool:
        return self.shapes.is_number(node) or is_of_configuration(node)

    @cached_property
    def _used_as_masks(self) -> frozenset[Node]:
        """Return what the site's path always takes for a mask where nothing but bools is one."""
        return list_masks(self.flow, self.match.evaluation.statement)

    def _counts(self, evaluation: Evaluation) -> bool:  # noqa: ARG002 - others know better
        """Tell whether a proof that something is a tensor counts for who asks."""
        return True

    def _annotation(self, node: Node) -> str:
        """Return what is said of a parameter, or of the parts of one: ``x["y"]`` of a table."""
        if node.op == Op.PARAM:
            return annotation(self.flow, str(node.value))
        whole = node.args[0] if node.op in _PART_OF and node.args else node
        if whole.op != Op.PARAM:
            return ""
        key = 0 if node.op == Op.ELEMENT else node.args[1].value
        if type(key) not in {int, str}:
            return ""
        kinds = _TABLE if type(key) is str else _LISTED
        parts = kinds.fullmatch(annotation(self.flow, str(whole.value)))
        return "" if parts is None else parts[1]

    @once_per_value
    def _is_bool(self, node: Node) -> bool:  # noqa: C901, PLR0911 - one case a kind of proof
        args = node.args
        if node in self._used_as_masks:
            return True
        if node.op in _BOOLEAN:
            if isinstance(node.value, tuple) and "out" in node.value:
                return False
            if node.op in _TESTS:
                return True
            # Only a comparison with a tensor is a tensor: ``n == 3`` is a Python bool.
            return any(map(self._may_be_compared, args)) or node in self._operands_of_tensors
        if node.op in _BOOLEAN_IF_OPERANDS_ARE:  # one may be a comparison of whatever
            known = [self._is_bool(arg) for arg in args]
            return all(known) or (
                any(known) and node.op not in _OF_NUMBERS_TOO and self._may_be_bool(node)
            )
        if node.op == Op.CAST:
            return args[1].value == "torch.bool"
        if node.op == Op.AUGMENTED and args[0].args and self._is_bool(args[0].args[0]):
            return True  # ``mask &= other`` writes into the mask
        if node.op in KEEPS_DTYPE | _BOOLEAN_IF_FIRST_IS:
            return self._is_bool(args[0])
        if node.op in _TAKES_DTYPE:
            if any(arg.op == Op.DTYPE for arg in args) or "_like" not in node.op:
                return any(arg.op == Op.DTYPE and arg.value == "torch.bool" for arg in args)
            keywords = node.value if isinstance(node.value, tuple) else ()
            return "dtype" not in keywords and self._is_bool(args[0])
        if node.op == Op.PHI:
            return all(map(self._is_bool, list_choices(node)))
        return self._annotation(node).endswith("BoolTensor")

    def _is_used_as_tensor(self, node: Node) -> bool:
        """Tell whether the function asks for a length, or calls what only tensors are given to.

        Wherever that is: one argument is not a tensor here and a number there.
        """
        return any(
            e.node.args[:1] == (node,) and (e.node.op == "py:len" or proves_tensor(self.flow, e))
            for e in self.flow.evaluations
        )

    def _is_mask(self, node: Node) -> bool | None:  # noqa: C901, PLR0911 - one case a kind of proof
        if self._is_bool(node):
            return True
        if node.op in _BOOLEAN and any(map(is_of_numpy, node.args)):
            return False
        if self._may_be_bool(node) or self._joins_masks(node):
            return None
        if node.op == "invert":
            return False if is_of_numpy(node.args[0]) else None
        if node.op in _NO_MASKS or node.op in _INTEGERS or self._is_int(node):
            return False
        if node.op == Op.CAST and "int" in str(node.args[1].value):
            return False
        if is_position(node) or is_selection(node) or is_used_as_index(self.flow, node):
            return False
        if is_of_configuration(node):
            return False
        # Most subscripts are integers; only a name that speaks of a mask leaves it open.
        names = names_of(node, self.match.evaluation.names)
        if speaks_of_positions(names) and not any(map(_KEY_NAME.search, names)):
            return None if self._is_given_any_index(node, names) else False
        if any(map(_KEY_NAME.search, names)) or (node.op == Op.ATTR and node.value == "pos"):
            return False
        if any(_MASK_NAME.search(n) for n in names):
            return None
        return None if self._may_be_given_mask(node, names) else False

    def _joins_masks(self, node: Node) -> bool:
        """Tell whether a product is one of a comparison and a mask: ``mask * (draw == True)``."""
        if node.op != "mul" or not any(
            self._may_be_bool(arg) or self._is_bool(arg) for arg in node.args
        ):
            return False
        return all(self._is_mask(arg) is not False for arg in node.args)

    def _may_be_given_mask(self, node: Node, names: Sequence[str]) -> bool:
        """Tell whether ``pad`` of ``y[pad] = 0.0`` is an argument that nothing speaks against.

        Not in ``y[:, pad] = 0``, where it counts columns, and not where ``y`` may be a dictionary.
        """
        whole = self.match.evaluation.node
        if node.op != Op.PARAM or whole.op != Op.SETITEM or whole.args[1] is not node:
            return False
        declared = self._annotation(node)
        if declared and not _TENSOR_ANNOTATION.fullmatch(declared):
            return False
        if any(_COUNTING_NAME.fullmatch(n) for n in names):
            return False
        if whole.args[2].value is True and str(whole.args[0].op).rstrip("_") in _ZEROS:
            return False  # that would be the mask itself
        return isinstance(whole.args[2].value, float) or self._is_tensor(whole.args[0]) is True

    def _is_given_any_index(self, node: Node, names: Sequence[str]) -> bool:
        """Tell whether nothing but its name says what the argument ``idx`` is: ``y[idx] = 0.0``."""
        if not any(map(_ANY_INDEX.search, names)) or not self._may_be_given_mask(node, names):
            return False
        value = self.match.evaluation.node.args[2].value
        return isinstance(value, (int, float)) and not isinstance(value, bool)

    def is_called_index(self, name: str) -> bool:
        """Tell whether a name speaks of positions: ``idx``, ``keep_ids``."""
        node = self.match.bindings[name]
        return speaks_of_positions(names_of(node, self.match.evaluation.names))

    def _can_be_number(self, node: Node) -> bool:
        """Tell whether a value is proven to be a number, at least in one branch."""
        choices = list_choices(node) if node.op == Op.PHI else (node,)
        return any(map(self.shapes.is_number, choices))

    @once_per_value
    def _may_be_number(self, node: Node) -> bool:  # noqa: PLR0911 - one case a kind of value
        """Tell whether a value may be a number: a setting or computed from settings."""
        if any(
            e.node.args[:1] == (node,)
            for op in _OF_SHAPED
            for e in self.flow.by_operation.get(op, ())
        ):
            return False  # ``h`` of ``torch.zeros(h.shape)``
        if any(_TENSOR_NAME.search(n) for n in names_of(node, self.match.evaluation.names)):
            return False
        if node.op == Op.ATTR and node.args[0].op == Op.CALL:  # ``assigner(boxes).labels``
            return _SEVERAL.search(str(node.value)) is None
        if node.op in _ARITHMETIC:
            settings = all(_is_setting(arg) or self.shapes.is_number(arg) for arg in node.args)
            return settings and any(self.shapes.is_number(arg) for arg in node.args)
        if node.op == Op.CALL and (returned := _may_return_number(node)) is not None:
            return returned
        if node.op == Op.ATTR and (
            node.value in {"bias", "weight"} or is_parameter(self.flow, node)
        ):
            return False
        if node.op in {Op.CARRIED, Op.AFTER}:  # what the rounds of a loop compute, or a count
            carried = [o.node.args for o in self.flow.observables if o.kind == "carry"]
            given = [value for read, value in carried if read is node]
            return not any(self._is_tensor(value) or _adds_result(value) for value in given)
        if node.op == Op.GETITEM and node.args[0].op == Op.ELEMENT:
            return node.args[1].op == Op.CONST  # ``for label in labels: x[mask] = label[0]``
        if node.op == Op.PHI:
            return all(map(self._may_be_number, list_choices(node)))
        # What a call or an operator returns is rarely a number, and then not ours to write.
        return node.op in _MAYBE_NUMBER

    @once_per_value
    def _may_be_bool(self, node: Node) -> bool:
        """Tell whether a value is a comparison, of whatever: a mask if it is a tensor."""
        args = node.args
        if node.op in _BOOLEAN:
            return True
        if node.op in _BOOLEAN_IF_OPERANDS_ARE:
            return all(self._may_be_bool(arg) or self._is_bool(arg) for arg in args)
        if node.op == Op.PHI:
            return all(self._may_be_bool(arg) or self._is_bool(arg) for arg in list_choices(node))
        return node.op in KEEPS_DTYPE | _BOOLEAN_IF_FIRST_IS and self._may_be_bool(args[0])

    def is_test_of(self, name: str, tensor: str) -> bool | None:
        """Tell whether a mask compares the elements of a tensor: then it has its shape."""
        mask, x = (self.match.bindings[n] for n in (name, tensor))
        return True if self._tests(mask, x) else None

    @once_per_value
    def _tests(self, mask: Node, x: Node) -> bool:
        if self.shapes.may_have_changed(mask):
            return False
        if mask.op in _BOOLEAN:
            return any(self._is_computed_from(arg, x) for arg in mask.args)
        if mask.op not in _BOOLEAN_IF_OPERANDS_ARE:
            return False
        known = all(self._may_be_bool(arg) or self._is_bool(arg) for arg in mask.args)
        return known and any(self._tests(arg, x) for arg in mask.args)

    @once_per_value
    def _is_computed_from(self, node: Node, x: Node) -> bool:
        """Tell whether a value is computed element by element from a tensor, on its device."""
        if node is x:
            return True
        if self.shapes.may_have_changed(node):
            return False
        if node.op in _ARITHMETIC - {"matmul"}:
            return any(self._is_computed_from(arg, x) for arg in node.args)
        return node.op in SAME_SHAPE - operators.MOVES and self._is_computed_from(node.args[0], x)

    def _may_be_compared(self, node: Node) -> bool:
        return not self.shapes.is_number(node) and self._is_tensor(node) is True

    @once_per_value
    def _dtype(self, node: Node) -> str | None:  # noqa: PLR0911 - one case a kind of proof
        if self._is_bool(node):
            return "bool"
        if node.op == Op.CAST and node.args[1].op == Op.DTYPE:
            node = node.args[1]
        if node.op == Op.DTYPE:
            return str(node.value).removeprefix("torch.")
        if are_found_positions(node):
            return "int64"
        if node.op in KEEPS_DTYPE or node.op in {"masked_fill", "softmax", "relu"}:
            return self._dtype(node.args[0])
        if node.op in {"matmul", "bmm"}:  # of one dtype
            return self._dtype(node.args[0]) or self._dtype(node.args[1])
        if node.op == "inverse":  # torch inverts no matrix in half precision
            return self._dtype(node.args[0]) or "float32"
        return None

    @once_per_value
    def _has_fractions(self, node: Node) -> bool | None:
        """Tell whether the elements of a tensor are fractions, not so positions.

        ``(y - a) / (b - a)``, not ``x.argmax(0) + 1``.
        """
        if node.op == "div":
            return True if node.args[-1].value is None else None  # no ``rounding_mode``
        if are_found_positions(node):
            return False
        if node.op in KEEPS_DTYPE | {"clamp"} and node.args:
            return self._has_fractions(node.args[0])
        if node.op not in {"add", "sub", "mul"}:
            return None
        kinds = {self._has_fractions(a) for a in node.args[:2] if self._is_int(a) is not True}
        return True if True in kinds else (kinds.pop() if len(kinds) == 1 else None)

    @once_per_value
    def _is_int(self, node: Node) -> bool | None:  # noqa: PLR0911 - one case a kind of proof
        if node.op == Op.CONST:
            return isinstance(node.value, int) and not isinstance(node.value, bool)
        if node.op in {Op.COUNTER, Op.SIZE, Op.RANK, "py:len", "py:int"}:
            return True
        if node.op in {"add", "sub", "mul", "floordiv", "mod", "neg"}:
            return True if all(map(self._is_int, node.args)) else None
        if node.op == Op.PHI:
            return True if all(map(self._is_int, list_choices(node))) else None
        if node.op in {"py:max", "py:min", "py:abs"}:
            return True if all(map(self._is_int, node.args)) else None
        if node.op == Op.ATTR:
            return is_int_attribute(self.flow, node) or is_count(self.flow, node)
        declared = self._annotation(node)
        if INT_ANNOTATION.fullmatch(declared) or is_used_as_int(self.flow, node):
            return True
        if self._is_used_as_tensor(node):
            return False
        made = node.op in KEEPS_DTYPE - {Op.GETITEM} or node.op in {Op.CAST, "sum"}
        return False if made or _TENSOR_ANNOTATION.fullmatch(declared) else None


def _may_return_number(call: Node) -> bool | None:
    """Tell whether ``lowest(x.dtype)`` and ``self.get_value()`` return a number, by their names."""
    called, *given = call.args
    if [arg.op for arg in given] == [Op.DTYPE_OF]:
        return True
    named = not given and called.op == Op.ATTR
    return bool(_RETURNS_NUMBER.search(str(called.value))) if named else None


def _is_setting(node: Node) -> bool:
    """Tell whether a value may be a setting, or one of several: ``self.cutoff[0]``."""
    if node.op == Op.GETITEM and node.args[1].op == Op.CONST:
        node = node.args[0]
    return node.op in {Op.CONST, Op.GLOBAL, Op.ATTR, Op.PARAM}


def _adds_result(node: Node) -> bool:
    """Tell whether a value is what a call returns, or adds it up: ``kept += self.layers[i](x)``."""
    inner = node.args if node.op in _ARITHMETIC | {Op.AUGMENTED} else ()
    return node.op == Op.CALL or any(map(_adds_result, inner))


def list_choices(node: Node) -> list[Node]:
    """Return what the code of two branches may leave behind: where it is read, it is bound."""
    return [arg for arg in node.args[1:] if arg.op != Op.UNSET] or [*node.args[1:]]
