"""A fused operator that is written out: its kernels follow each other in the recording.

What: RMSNorm (``Pow > ReduceMean > Adds > Rsqrt > Mul > Mul``), LayerNorm, GELU, rotary embedding,
SwiGLU or attention (``BatchMatMul > Softmax > BatchMatMul``) as the small kernels that PyTorch
launches for each of their formulas.

Why it is slow on the NPU: each of the kernels reads the whole tensor and writes it back; a fused
one reads it once. Attention also writes its scores, which are as large as the square of the
sequence.

Evidence: the Types of kernels that ran after each other on one stream of work, with casts and
copies in between; of attention and SwiGLU the shapes as well, as others run such Types, too.

Use instead: the fused operator that the finding names. ``npufix scan FOLDER_OF_YOUR_CODE`` or
``--source`` finds the lines and writes the change where it is the same function; this rule needs no
source, and is silent where a finding at a line explains the same kernels.

Safety: advice. A recording shows which kernels ran, not which constants they had.

References: fusion rules of msprof-analyze (timeline_fusion_ops.yaml); RMSNorm, SwiGLU, rotary and
attention pages of Ascend Extension for PyTorch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.fusable import (
    BATCH_MATMUL,
    MATMUL,
    chain,
    masks_square,
    parts_of,
    passes_on,
    shapes_of,
)
from npufix.rules.shared.recording.observing import is_named, per_step, places, share
from npufix.rules.shared.recording.recorded_cells import (
    CELLS,
    count_moved_bytes,
    per_row,
    tensor_bytes,
)
from npufix.rules.shared.recording.recorded_shapes import (
    product_operations,
    same_elements,
    share_an_input,
)
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.fusable import Linked
    from npufix.rules.shared.recording.sequences import Integers, Mask, Occurrences

_PRODUCT = rf"{BATCH_MATMUL}|aten::(bmm|baddbmm|matmul)"
"""A recording of a GPU names the operator that asked for a kernel as its Type."""
_MUL, _RSQRT, _SQRT = "Mul|aten::mul_?", "Rsqrt|aten::rsqrt_?", "Sqrt|aten::sqrt_?"
_SQUARE, _MEAN = "Pows?|Square|Mul|aten::(pow|square|mul)", "ReduceMean\\w*|aten::mean"
_ADD, _SCALE = "Adds?|AddV2|aten::add_?", "Muls?|aten::mul_?"
_SUB, _DIVIDE = "Subs?|aten::sub_?", "RealDiv|Divs?|aten::div_?"
_ANY_SCALE = f"{_SCALE}|{_DIVIDE}"
_SOFTMAX = "SoftmaxV2|Softmax|AclnnSoftmax|ScaledMaskedSoftmax|aten::_?softmax"
_SOFTMAX_GRAD = r"SoftmaxGrad\w*|aten::_softmax_backward_data"
_MASK = "Add|MaskedFill|SelectV2|Select|Masked\\w*|aten::(add|masked_fill|where)_?"
_SWISH = "Swish|Silu|SiLU|aten::silu"
_CLAMP = "ClipByValue(V2)?|Minimum|Minimums|ClampMax\\w*|Clamp\\w*"
_COPIES = (
    "Cast", "Transpose", "TransData", "TensorMove", "ViewCopy", "AsStrided", "BroadcastTo",
    "aten::copy_", "aten::_to_copy", "aten::clone",
)  # fmt: skip
_CUTS = ("Slice", "StridedSlice", "StridedSliceD", "Split", "SplitV", "SplitD", "SplitVD")
_DROPOUT = (
    "DropOutDoMask", "DropOutDoMaskV3", "DropOutGenMask", "DropOutGenMaskV4", "DropoutV3",
    "StatelessDropOutGenMask", "aten::native_dropout",
)  # fmt: skip

_OF_GRADIENTS = ("forward", "forward-function")
"""How a kernel was led to a line: by the forward call that it is the gradient of."""
_MOSTLY = 0.9
"""Share of a line's forward time that an operator takes where the line's gradient is its own."""
_PASSES, _PASSES_OF_HALVES = (2, 3), (3, 5)
"""How often a fused kernel moves the tensor that the first kernel reads, and its gradient does: one
reads and writes it, the other reads two; of two halves that become one there are as many more."""
_SPREAD = 0.3
"""How far a fused kernel is from the bandwidth of those in its place."""
_OF_QUICKEST = ((0.4, 0.9), (0.35, 0.8))
"""Products inside of fused attention compute so much of what the quickest of a run does, forward
and backward."""
_SKIPS = 2
"""With a mask of a square below its diagonal a fused kernel computes half of it."""
_AGAIN = 5 / 4
"""The gradient computes the scores once more: five products instead of four."""
_LARGE_PRODUCT = 1e9
"""Operations from which a product shows how quickly the chip computes."""
_BY_PRODUCTS = "of a fused kernel only the products count, by the quickest of this dump"
_BY_BYTES = "a fused kernel reads and writes the tensor once, at the bandwidth of these kernels"
_ALL_BUT = (
    "at most all kernels but the longest of each: a fused one reads and writes, too",
    "at most all kernels but the products",
)


class _Gain(TypedDict, total=False):
    saving_ns: tuple[int, int]
    basis: str
    instead: tuple[int, ...]
    instead_backward: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class _WrittenOut:
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
    passes: tuple[int, int] = _PASSES
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


_NORM_ROOT = (
    ("Muls", "Pows?", _MUL), ("Pows?", "Muls", _MUL), ("Pows?", _MUL, "Muls"), (_MUL, _MUL, "Muls"),
)  # fmt: skip
"""``-0.5 * grad * rsqrt ** 3``, in any order."""
_RMS_BACKWARD = tuple(
    (*weight, "Mul", "Mul", "ReduceSum\\w*", *root, _ANY_SCALE, *power, "Muls", "Mul", "Add|AddV2")
    for weight in (("Mul", "Mul", "ReduceSum\\w*"), ())
    for root in _NORM_ROOT
    for power in (("Pows?",), ())
)
"""Of the weight, of the product with the root, of the root, the mean and the square."""

_ALL = (
    _WrittenOut(
        "attention",
        "F.scaled_dot_product_attention(q, k, v, ...) or torch_npu.npu_fusion_attention",
        (
            (_PRODUCT, _ANY_SCALE, _MASK, _SOFTMAX, _PRODUCT),
            (_PRODUCT, f"{_ANY_SCALE}|{_MASK}", _SOFTMAX, _PRODUCT),
            (_PRODUCT, _SOFTMAX, _PRODUCT),
        ),
        between=(*_COPIES, *_DROPOUT),
        stays=_PRODUCT,
        links=_where_recorded(passes_on((0, 1), (-2, -1)), _reads_as_much((-2, -1))),
        backward=tuple(
            (_PRODUCT, _PRODUCT, _SOFTMAX_GRAD, *again, _PRODUCT, _PRODUCT)
            for again in ((f"{_MASK}|{_MUL}", _ANY_SCALE), (f"{_ANY_SCALE}|{_MASK}",), ())
        ),
        backward_links=_where_recorded(_hands_on_backward, _reads_backward),
        on_gpu="F.scaled_dot_product_attention(q, k, v, ...)",
    ),
    _WrittenOut(
        "LayerNorm",
        "F.layer_norm(x, shape, weight, bias, eps)",
        tuple(
            (_MEAN, _SUB, _SQUARE, _MEAN, *again, _ADD, *root, _MUL, _ADD)
            for again in ((_SUB,), ())
            for root in ((_SQRT, _DIVIDE), (_RSQRT, _MUL))
        ),
        on_gpu="F.layer_norm(x, shape, weight, bias, eps)",
    ),
    _WrittenOut(
        "RMSNorm",
        "torch_npu.npu_rms_norm(x, weight, epsilon=eps)[0]",
        (
            (_SQUARE, _MEAN, _ADD, _RSQRT, _MUL, _MUL),
            (_SQUARE, _MEAN, _ADD, _SQRT, _DIVIDE, _MUL),
            (_SQUARE, _MEAN, _ADD, _RSQRT, _MUL),
        ),
        backward=_RMS_BACKWARD,
        on_gpu="F.rms_norm(x, shape, weight, eps), or torch.compile",
    ),
    _WrittenOut(
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
    _WrittenOut(
        "GELU",
        "F.gelu(x)",
        (
            (f"{_DIVIDE}|{_SCALE}", "Erf", _ADD, "Muls", "Mul"),
            (f"{_DIVIDE}|{_SCALE}", "Erf", _ADD, "Mul"),
        ),
    ),
    _WrittenOut(
        "rotary embedding",
        "torch_npu.npu_rotary_mul(x, cos, sin)",
        (
            ("Mul", "Neg", "ConcatD?(V2)?", "Mul", "Add|AddV2"),
            ("Neg", "ConcatD?(V2)?", "Mul", "Mul", "Add|AddV2"),
        ),
        between=(*_COPIES, *_CUTS),
    ),
    _WrittenOut(
        "SwiGLU",
        "torch_npu.npu_swiglu(x) on gate and up side by side (one projection gives both; to join "
        "them with cat costs more than it saves)",
        ((_SWISH, _MUL),),
        between=(),
        links=_by_shapes(passes_on((0, 1)), _reads_as_much((0, 1))),
        passes=_PASSES_OF_HALVES,
    ),
    _WrittenOut(
        "clamped SwiGLU",
        "one kernel written in Triton (triton-ascend), as for swiglustep in vllm-ascend; "
        "torch_npu.npu_clipped_swiglu only where the gate is clamped before it is activated",
        tuple(
            (*gate, *up, "Mul")
            for gate in (("Swish|Silu|SiLU", _CLAMP), (_CLAMP, "Swish|Silu|SiLU"))
            for up in ((_CLAMP,), ())
        ),
        between=_CUTS,
        links=passes_on((0, 1), (1, -1)),
        passes=_PASSES_OF_HALVES,
    ),
)  # fmt: skip


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for each operator that is written out."""
    told: set[int] = set()
    for wanted in _ALL:
        forward = list(_variants(recording, wanted.variants, wanted, told))
        backward = list(_variants(recording, wanted.backward, wanted, told))
        found = [*forward, *backward]
        if not found:
            continue
        if wanted.stays:
            rows = _rows_of(found, wanted)
            gradient = rows[:0]
            gain = _gain_by_products(forward, backward, rows, recording)
        else:
            rows, behind = _rows_of(forward, wanted), _rows_of(backward, wanted)
            gradient = np.union1d(behind, _gradient(rows, recording))
            gain = _gain(forward, rows, gradient, recording, wanted.passes)
        rows = np.union1d(rows, gradient)
        kernels = recording.kernels.iloc[rows]
        spent = kernels["duration_ns"].to_numpy()
        cost = per_step(int(spent.sum()), recording)
        if share(cost, recording) < LEAST_SHARE:
            continue
        most = max(forward or backward, key=lambda each: each.cost_ns)
        count = sum(each.per_step for each in forward or backward)
        kept = sum(_count_kept_ns(each, wanted) for each in found)
        saved = per_step(int(spent.sum()) - kept, recording)
        yield Observation(
            what=(
                f"{wanted.name} is written out {format_count(count, 'time')} per step: "
                f"{chain(most)}, {milliseconds(cost)} ({percent(share(cost, recording))} of the "
                "step)"
            ),
            evidence=(*parts_of(most), *shapes_of(most)),
            cost_ns=cost,
            places=places(kernels, spent, recording),
            kernels=Labels(kernels.index),
            advice=wanted.instead,
            gpu_advice=wanted.on_gpu,
            **(gain or _Gain(saving_ns=(0, saved), basis=_ALL_BUT[bool(wanted.stays)])),
        )


def _rows_of(found: Sequence[Occurrences], wanted: _WrittenOut) -> Integers:
    """Return the kernels of some occurrences, with what is cast and dropped out in between."""
    beside = [each.inside(("Cast", *_DROPOUT)) for each in found]
    beside += [] if wanted.stays else [np.concatenate(each.beside("Cast")) for each in found]
    none = np.zeros(0, np.int64)
    rows: Integers = np.unique(
        np.concatenate([none, *(each.rows.ravel() for each in found), *beside])
    )
    return rows[rows >= 0]


def _gradient(rows: Integers, recording: Recording) -> Integers:
    """Return the kernels of the gradient of lines that compute little but the operator."""
    kernels = recording.kernels
    back = kernels["basis"].isin(_OF_GRADIENTS).to_numpy() & (kernels["path"] != "").to_numpy()
    lines = kernels.groupby(["path", "line"], observed=True).ngroup().to_numpy()
    ahead = np.where(back, 0, kernels["duration_ns"].to_numpy())
    whole, own = (
        np.bincount(lines[at], ahead[at], lines.max(initial=0) + 1)
        for at in (np.arange(len(kernels)), rows)
    )
    mostly = (own > 0) & (own >= _MOSTLY * whole)
    return np.flatnonzero(back & mostly[lines]).astype(np.int64)


def _gain(
    forward: Sequence[Occurrences],
    rows: Integers,
    gradient: Integers,
    recording: Recording,
    passes: tuple[int, int],
) -> _Gain:
    """Return what fused kernels take: they move what is handed over at the bandwidth of these."""
    kernels = recording.kernels
    firsts = []
    for each in forward:
        cast = each.beside("Cast")[0]
        firsts.append(np.where(cast >= 0, cast, each.rows[:, 0]))
    first = kernels.iloc[np.concatenate(firsts)] if firsts else kernels[:0]
    handed = float(per_row(first, CELLS[:2], lambda *cells: max(tensor_bytes(*cells))).sum())
    spent = kernels["duration_ns"].to_numpy()
    moved = count_moved_bytes(kernels.iloc[rows])
    speed = float(moved.sum()) / max(1.0, float(spent[rows].sum()))
    if not handed or not moved.all() or not speed:
        return {}
    times = [
        (round((1 - _SPREAD) * often * handed / speed), round((1 + _SPREAD) * often * handed / speed))
        for often in (passes[0], passes[1] if len(gradient) else 0)
    ]  # fmt: skip
    whole = int(spent[rows].sum()) + int(spent[gradient].sum())
    least, most = (sum(part) for part in zip(*times, strict=True))
    launches = len(first)
    if len(gradient) and not _is_placed(gradient, recording):
        launches, times = 2 * launches, [(least, most), (0, 0)]
    return _Gain(
        saving_ns=(
            per_step(max(0, whole - most), recording),
            per_step(max(0, whole - least), recording),
        ),
        basis=_BY_BYTES,
        instead=(launches, *times[0]),
        instead_backward=times[1] if any(times[1]) else None,
    )


def _is_placed(rows: Integers, recording: Recording) -> bool:
    """Tell whether gradients have a line; those without are replaced where the forward ones are."""
    return bool(recording.kernels["basis"].iloc[rows].isin(_OF_GRADIENTS).any())


def _gain_by_products(
    forward: Sequence[Occurrences],
    backward: Sequence[Occurrences],
    rows: Integers,
    recording: Recording,
) -> _Gain:
    """Return what fused attention takes: its products, without what is written between them."""
    kernels = recording.kernels
    products = is_named(kernels, f"{_PRODUCT}|{MATMUL}|aten::(add)?mm", "type")
    quickest = kernels[products]
    done = product_operations(quickest)
    spent = quickest["duration_ns"].to_numpy(np.float64)
    large = (done >= _LARGE_PRODUCT) & (spent > 0)
    if not forward or not large.any():
        return {}
    rate = float((done[large] / spent[large]).max())
    causal = masks_square(forward, _MASK)
    times: list[tuple[int, int, int]] = []
    for found, again, (slow, fast) in zip(
        (forward, backward), (1.0, _AGAIN), _OF_QUICKEST, strict=True
    ):
        own = np.concatenate([each.rows.ravel() for each in found]) if found else rows[:0]
        own = kernels.iloc[own[products[own]]]
        operations, now = product_operations(own) * again, float(own["duration_ns"].sum()) * again
        if len(own) and not operations.all():
            return {}
        quick = fast * (_SKIPS if causal else 1)
        most, least = (min(now, float(operations.sum()) / rate / part) for part in (slow, quick))
        likely = math.sqrt(least * most) if causal else (least + most) / 2
        times.append((round(least), round(most), round(likely)))
    whole = int(kernels["duration_ns"].to_numpy()[rows].sum())
    placed = _is_placed(rows, recording)
    ahead, behind = times
    if backward and not placed:
        ahead = (ahead[0] + behind[0], ahead[1] + behind[1], ahead[2] + behind[2])
        behind = (0, 0, 0)
    saved = [per_step(max(0, whole - ahead[at] - behind[at]), recording) for at in (1, 0)]
    return _Gain(
        saving_ns=(saved[0], saved[1]),
        basis=_BY_PRODUCTS,
        instead=(sum(each.count for each in forward), *ahead),
        instead_backward=behind if backward and placed else None,
    )


def _variants(
    recording: Recording,
    variants: tuple[tuple[str, ...], ...],
    wanted: _WrittenOut,
    told: set[int],
) -> Iterator[Occurrences]:
    """Yield the occurrences of each variant that has some, without the kernels of earlier ones."""
    links = wanted.backward_links if variants is wanted.backward else wanted.links
    for parts in variants:
        found = find(recording, parts, between=wanted.between)
        if not found.count:
            continue
        found = found.without(told)
        if links is not None:
            found = found.where(links(found))
        told.update(found.labels)
        if found.count:
            yield found


def _count_kept_ns(found: Occurrences, wanted: _WrittenOut) -> int:
    """Return what of the kernels a fused one does as well, over the whole recording."""
    if not wanted.stays:
        return int(found.durations.max(axis=1).sum())
    return int(
        found.durations[
            is_named(found.kernels, wanted.stays, "type").reshape(found.rows.shape)
        ].sum()
    )


RULE = Diagnostic(
    id="NPU151",
    name="written-out-operator",
    summary="a fused operator runs as the small kernels of its formula",
    advice="the fused operator; npufix scan FOLDER_OF_YOUR_CODE finds the lines",
    gpu_advice="torch.compile, which joins them to one kernel",
    check=check,
    table="fusion",
    requires="torch_npu>=2.1",
    yields=1,
)
