"""Fused operators, and the kernels of the formula that each is written out as."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.shared.recording.fusable import BATCH_MATMUL, passes_on
from npufix.rules.shared.recording.recorded_cells import CELLS, per_row
from npufix.rules.shared.recording.recorded_shapes import (
    count_largest,
    same_elements,
    share_an_input,
)

if TYPE_CHECKING:
    from npufix.rules.shared.recording.fusable import Linked
    from npufix.rules.shared.recording.sequences import Mask, Occurrences

PRODUCT = rf"{BATCH_MATMUL}|aten::(bmm|baddbmm|matmul)"
"""A recording of a GPU names the operator that asked for a kernel as its Type."""
_MUL, _RSQRT, _SQRT = "Mul|aten::mul_?", "Rsqrt|aten::rsqrt_?", "Sqrt|aten::sqrt_?"
_SQUARE, _MEAN = "Pows?|Square|Mul|aten::(pow|square|mul)", "ReduceMean\\w*|aten::mean"
_ADD, _SCALE = "Adds?|AddV2|aten::add_?", "Muls?|aten::mul_?"
_SUB, _DIVIDE = "Subs?|aten::sub_?", "RealDiv|Divs?|aten::div_?"
_ANY_SCALE = f"{_SCALE}|{_DIVIDE}"
_SOFTMAX = "SoftmaxV2|Softmax|AclnnSoftmax|ScaledMaskedSoftmax|aten::_?softmax"
_SOFTMAX_GRAD = r"SoftmaxGrad\w*|aten::_softmax_backward_data"
MASK = "Add|MaskedFill|SelectV2|Select|Masked\\w*|aten::(add|masked_fill|where)_?"
_SWISH = "Swish|Silu|SiLU|aten::silu"
_CLAMP = "ClipByValue(V2)?|Minimum|Minimums|ClampMax\\w*|Clamp\\w*"
_RANDOM = (
    r"DSARandom\w*|DSAStatelessRandom\w*|Stateless(Random)?Uniform\w*|RandomUniform\w*|"
    "aten::(rand|rand_like|uniform_)"
)
_FLIPPED = r"(DSA|Stateless)?Bernoulli\w*|aten::bernoulli(_|\.p)?"
"""Zeros and ones at once; ``bernoulli_`` of torch_npu runs as a kernel that makes numbers."""
_COMPARED = "(Greater|Less)(Equal)?|aten::(gt|ge|lt|le)"
_HIDES = f"{_MUL}|SelectV2|Select|Where|MaskedFill\\w*|aten::(where|masked_fill_?)"
_COPIES = (
    "Cast", "Transpose", "TransData", "TensorMove", "ViewCopy", "AsStrided", "BroadcastTo",
    "aten::copy_", "aten::_to_copy", "aten::clone",
)  # fmt: skip
CUTS = (
    "Slice", "StridedSlice", "StridedSliceD", "Split", "SplitV", "SplitD", "SplitVD", "SliceGrad",
    "StridedSliceGrad", "ZerosLike", "Fill", "PadD", "PadV3",
)  # fmt: skip
"""Halves of a tensor, and backward a half that is put into zeros."""
DROPOUT = (
    "DropOutDoMask", "DropOutDoMaskV3", "DropOutGenMask", "DropOutGenMaskV4", "DropoutV3",
    "StatelessDropOutGenMask", "aten::native_dropout",
)  # fmt: skip

_PASSES, _PASSES_OF_HALVES = (2, 3), (3, 5)
"""How often a fused kernel moves the tensor that the first kernel reads, and its gradient does: one
reads and writes it, the other reads two; of two halves that become one there are as many more."""
_PASSES_OF_DROPOUT = (3, 2)
"""Making the bits takes about as long as reading the tensor."""


@dataclass(frozen=True, slots=True)
class WrittenOut:
    """An operator, and the kernels that it is written out as."""

    name: str
    instead: str
    variants: tuple[tuple[str, ...], ...]
    """The longest first, so that the last product of a norm with a weight is part of it."""
    between: tuple[str, ...] = _COPIES
    stays: str = ""
    """The part that the fused operator computes as well; without any, the longest of each."""
    links: Linked | None = None
    backward: tuple[tuple[str, ...], ...] = ()
    """What autograd launches for it."""
    backward_links: Linked | None = None
    is_norm: bool = False
    """Its gradient comes in an order of its own each time (``root_gradients``)."""
    passes: tuple[int, int] = _PASSES
    handed_by: int = 0
    """The part that reads the whole tensor: rotary embedding may begin with a half."""
    on_gpu: str = "torch.compile, which joins them to one kernel"


def _where_recorded(links: Linked, inputs: Linked) -> Linked:
    """Return a test of what hands on to what, which is passed where no shapes were recorded.

    A softmax between two batched products (Level0) is attention without them as well.
    """
    known = _by_shapes(links, inputs)

    def linked(found: Occurrences) -> Mask:
        return _lacks("input_shapes", found) | known(found)

    return linked


def _by_shapes(links: Linked, inputs: Linked) -> Linked:
    """Return a test that asks ``inputs`` where only what a kernel reads is recorded (GPU).

    The product behind a softmax reads as much as that does.
    """

    def linked(found: Occurrences) -> Mask:
        return np.where(_lacks("output_shapes", found), inputs(found), links(found))

    return linked


def _lacks(cells: str, found: Occurrences) -> Mask:
    first, last = ((found.part(at)[cells] == "").to_numpy(bool) for at in (0, -1))
    return first & last


def _reads_as_much(*pairs: tuple[int, int]) -> Linked:
    """Return the test that both of each pair read a tensor of one size."""

    def linked(found: Occurrences) -> Mask:
        alike = np.ones(found.count, np.bool_)
        for one, other in pairs:
            parts = found.part(one, "input_shapes"), found.part(other, "input_shapes")
            alike &= share_an_input(*parts, same_elements)
        return alike

    return linked


def _hands_on_backward(found: Occurrences) -> Mask:
    """Tell where one of two products writes the gradient of the scores, and two read that."""
    written: Mask = passes_on((0, 2))(found) | passes_on((1, 2))(found)
    return written & passes_on((2, -2), (2, -1))(found)


def _reads_backward(found: Occurrences) -> Mask:
    """Tell the same by what each reads: one of the first two products reads the weights."""
    read: Mask = _reads_as_much((0, 2))(found) | _reads_as_much((1, 2))(found)
    return read & _reads_as_much((2, -2), (2, -1))(found)


def _hides_all(found: Occurrences) -> Mask:
    """Tell where a number was drawn for each of those that are hidden or kept, not for each row."""
    drawn, kept = (
        per_row(found.part(at), CELLS[::2], lambda *cells: max(map(count_largest, cells)))
        for at in (0, -1)
    )
    alike: Mask = (drawn > 1) & (drawn == kept)
    return alike


def _turns_a_half(found: Occurrences) -> Mask:
    """Tell where one half of what is multiplied is negated: the gradient of ``rotate_half``."""
    sizes = [
        per_row(found.part(at, "input_shapes"), ["input_shapes"], count_largest) for at in (0, 1)
    ]
    negated: Mask = (sizes[0] > 0) & (sizes[0] == 2 * sizes[1])
    return negated


FORMULAS = (
    WrittenOut(
        "attention",
        "F.scaled_dot_product_attention(q, k, v, ...) or torch_npu.npu_fusion_attention",
        (
            (PRODUCT, _ANY_SCALE, MASK, _SOFTMAX, PRODUCT),
            (PRODUCT, f"{_ANY_SCALE}|{MASK}", _SOFTMAX, PRODUCT),
            (PRODUCT, _SOFTMAX, PRODUCT),
        ),
        between=(*_COPIES, *DROPOUT),
        stays=PRODUCT,
        links=_where_recorded(passes_on((0, 1), (-2, -1)), _reads_as_much((-2, -1))),
        backward=tuple(
            (PRODUCT, PRODUCT, _SOFTMAX_GRAD, *again, PRODUCT, PRODUCT)
            for again in ((f"{MASK}|{_MUL}", _ANY_SCALE), (f"{_ANY_SCALE}|{MASK}",), ())
        ),
        backward_links=_where_recorded(_hands_on_backward, _reads_backward),
        on_gpu="F.scaled_dot_product_attention(q, k, v, ...)",
    ),
    WrittenOut(
        "LayerNorm",
        "F.layer_norm(x, shape, weight, bias, eps)",
        tuple(
            (_MEAN, _SUB, _SQUARE, _MEAN, *again, _ADD, *root, _MUL, _ADD)
            for again in ((_SUB,), ())
            for root in ((_SQRT, _DIVIDE), (_RSQRT, _MUL))
        ),
        on_gpu="F.layer_norm(x, shape, weight, bias, eps)",
    ),
    WrittenOut(
        "RMSNorm",
        "torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]",
        (
            (_SQUARE, _MEAN, _ADD, _RSQRT, _MUL, _MUL),
            (_SQUARE, _MEAN, _ADD, _SQRT, _DIVIDE, _MUL),
            (_SQUARE, _MEAN, _ADD, _RSQRT, _MUL),
        ),
        is_norm=True,
        on_gpu="F.rms_norm(x, shape, weight, eps), or torch.compile",
    ),
    WrittenOut(
        "GELU",
        'F.gelu(x, approximate="tanh")',
        tuple(
            (*half, *cube, _SCALE, "Add|AddV2|Axpy\\w*", _SCALE, "Tanh", _ADD, *end)
            for cube in (("Mul", "Mul"), ("Pows?",))
            for half, end in (
                (("Muls",), ("Mul",)), ((), ("Mul", "Muls")), ((), ("Muls", "Mul")), ((), ("Mul",))
            )
        ),
    ),
    WrittenOut(
        "GELU",
        "F.gelu(x)",
        (
            (f"{_DIVIDE}|{_SCALE}", "Erf", _ADD, "Muls", "Mul"),
            (f"{_DIVIDE}|{_SCALE}", "Erf", _ADD, "Mul"),
        ),
    ),
    WrittenOut(
        "rotary embedding",
        "torch_npu.npu_rotary_mul(x, cos, sin)",
        (
            ("Mul", "Neg", "ConcatD?(V2)?", "Mul", "Add|AddV2"),
            ("Neg", "ConcatD?(V2)?", "Mul", "Mul", "Add|AddV2"),
        ),
        between=(*_COPIES, *CUTS),
        backward=tuple(
            ("Mul", "Neg", *whole, "Mul", *end)
            for whole in (("Add|AddV2",), ())
            for end in (("Add|AddV2",), ())
        ),
        backward_links=_turns_a_half,
        handed_by=-1,
    ),
    WrittenOut(
        "dropout",
        "F.dropout(x, p), or nn.Dropout: the mask is one bit a number",
        tuple(
            (*drawn, *before, _HIDES, *behind)
            for drawn in ((_RANDOM, _COMPARED), (_FLIPPED,))
            for before in ((_ANY_SCALE,), ())
            for behind in ((_ANY_SCALE,), ())
            if before or drawn[1:] or behind
        ),
        between=(*_COPIES, "ZerosLike", "Fill", "LogicalNot"),
        links=_hides_all,
        passes=_PASSES_OF_DROPOUT,
        handed_by=-1,
        on_gpu="F.dropout(x, p), or nn.Dropout",
    ),
    WrittenOut(
        "SwiGLU",
        "torch_npu.npu_swiglu(x) on gate and up side by side (one projection gives both; to join "
        "them with cat costs more than it saves)",
        ((_SWISH, _MUL),),
        between=(),
        links=_by_shapes(passes_on((0, 1)), _reads_as_much((0, 1))),
        passes=_PASSES_OF_HALVES,
    ),
    WrittenOut(
        "clamped SwiGLU",
        "one kernel written in Triton (triton-ascend), as for swiglustep in vllm-ascend; "
        "torch_npu.npu_clipped_swiglu only where the gate is clamped before it is activated",
        tuple(
            (*gate, *up, "Mul")
            for gate in (("Swish|Silu|SiLU", _CLAMP), (_CLAMP, "Swish|Silu|SiLU"))
            for up in ((_CLAMP,), ())
        ),
        between=CUTS,
        links=passes_on((0, 1), (1, -1)),
        passes=_PASSES_OF_HALVES,
    ),
)  # fmt: skip
