"""One Type of kernel takes much of the time, and no other rule says why.

What: kernels of one Type take 2.5 % of the compute time or more. Where another finding is about most
of their time, this one is left out.

Why it is slow on the NPU: that depends on the Type. Products and attention are the work itself: what
helps them is a lower precision, aligned sizes, fewer of them. Everything else moves memory around
that work; IndexPut, Index and NonZero are the worst, as they compute an address for each element.

Evidence: time and number of the kernels, their shapes, and the lines that asked for them. Element-wise
kernels of several Types that one line asks for are one finding.

Use instead: what the Type usually comes from, and the rules that exchange it; ``npufix scan`` finds
their patterns in a source without a dump.

Safety: advice.

References: PRIORITY of msprof-analyze (5 %: what takes a little less is told, too); AI CPU and affinity operator pages of the performance
tuning guide of Ascend Extension for PyTorch.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent, shorten
from npufix.rules.shared.recording.kernel_groups import PRIORITY
from npufix.rules.shared.recording.observing import (
    COPIES,
    compute_ns,
    is_named,
    per_step,
    places,
    rows_where,
    share,
)
from npufix.rules.shared.recording.recorded_cells import list_costliest
from npufix.rules.shared.recording.recorded_shapes import elements, shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording

_HOT = PRIORITY / 2
"""Share of the compute time; findings are in the order of theirs, so none vanishes just below 5 %."""
_OF_STEP = 0.005
"""Share of the step below which half of ``PRIORITY`` is too little: of a step that waits."""
_MOST_SHAPES = 3
_MOST_TYPES = 4
_WORK = re.compile(
    r"(Batch|Grouped|Quant\w*|Weight\w*)?(MatMul|Matmul|Gemm)\w*|Conv\w*|Depthwise\w*"
    r"|\w*Attention\w*|\w*FlashAttn\w*|MoeDistribute\w*|Mla\w*"
    # Fused already, and of one read and one write.
    r"|SwiGlu\w*|CrossEntropyLoss\w*|RotaryPositionEmbedding\w*|RotaryMul\w*"
    r"|\w*RmsNorm\w*|\w*AddLayerNorm\w*|LayerNormV\d\w*|LayerNormGradV\d\w*"
    # Of a GPU: by the operator, else by the kernel.
    r"|aten::\w*(mm|bmm|linear|matmul|conv|attention)\w*"
    r"|.*(nvjet|gemm|Cijk|cutlass|xmma|flash|fmha|matmul|attention|attn|::mha_).*"
)
_UPDATE = re.compile(r"Apply\w+|aten::_fused_\w*(adam|sgd|adagrad)\w*")
"""Work as well: an optimizer that is fused already."""
_TABLE_GRADIENT = r"EmbeddingDenseGrad\w*"
_SPARSE = 4
"""Times as many rows as are looked up has a table of which an update rewrites mostly the others."""
_ELEMENTWISE = (
    "element-wise work that reads and writes the whole tensor each time: a fused operator of "
    "torch_npu for the sequence around it; npufix scan FOLDER_OF_YOUR_CODE finds known ones"
)
_BY_TYPE = (
    (r"(LinearIndex|IndexPut)\w*|NonZero|NonZeroV2",
     ("x[mask] = v, x[index] = v or the gradient of x[index]: masked_fill_, where, index_fill_ or "
     "embedding (NPU201, NPU210, NPU211); npufix scan FOLDER_OF_YOUR_CODE finds them")),
    (r"EmbeddingDenseGrad\w*",
     ("the gradient of nn.Embedding, which fills the whole table and adds to it row by row: look each "
     "index up once (torch.unique, then the inverse), spread the table over the ranks, or freeze it")),
    (r"Index|IndexByTensor|Gather\w*|Scatter\w*|InplaceIndexAdd\w*",
     ("rows picked or added one by one: index_select, one_hot and a product, or embedding (NPU210); "
     "npufix scan FOLDER_OF_YOUR_CODE finds them")),
    (r"Foreach\w*",
     ("the optimizer: a fused one (torch.optim.AdamW(..., fused=True), torch_npu.optim.NpuFusedSGD)"
     " reads and writes parameters and moments once")),
    ((r"Transpose\w*|TransData|AsStrided|ViewCopy|TensorMove|Contiguous|MemSet|ConcatD?\w*|Split\w*"
     r"|Slice\w*|StridedSlice\w*|BroadcastTo|Tile\w*|Pad\w*"),
     ("copies that compute nothing: fewer contiguous(), cat, expand and transposes in between, or "
     "an operator that takes the layout as it is")),
    (r"Cast", "one dtype for the whole region: autocast or model.to(torch.bfloat16) once"),
    ((r"Reduce\w+|\w*Softmax\w*|\w*Norm\w*|Exp|Log|Sub|Div|RealDiv|Mul\w*|Add\w*|Pow\w*|Sqrt"
     r"|Square|Rsqrt|Neg|Abs|Sigmoid|Tanh|Axpy\w*|Addc\w+|Erf|Gelu\w*|Silu|Swish\w*|Select\w*|Muls|Adds"),
     _ELEMENTWISE),
    (r"MaxPool\w*|AvgPool\w*|Pooling\w*", ("a stride in the convolution before it, or channels that "
     "are a multiple of 16")),
    (r"Sort\w*|TopK\w*|ArgMax\w*|ArgMin\w*|Unique\w*|Cum\w+",
     ("fewer and smaller calls: values and indices once, on the part that is needed; float32 or "
     "float16 instead of int64")),
)  # fmt: skip
_BY_MASK = (
    "x[mask] = v with a boolean mask, whose places NonZero looks up: x.masked_fill_(mask, v) or "
    "torch.where(mask, v, x) (NPU201); npufix scan FOLDER_OF_YOUR_CODE finds it"
)
_TABLE = (
    "the gradient of nn.Embedding fills the whole table, and the optimizer rewrites all of it for the "
    "few rows that are looked up: update these rows alone (each index once: torch.unique, then the "
    "inverse), spread the table over the ranks, or freeze it"
)
_OF_LISTS = r"(Foreach|aten::_foreach_)\w*"
"""Kernels over lists of tensors: those of an optimizer, or of what is done to gradients, are one."""
_NEAR = 4
"""Kernels between the NonZero of a boolean mask and the IndexPut that takes its result."""
_GPU_ELEMENTWISE = re.compile(
    r"aten::_?(mul|add|sub|rsub|div|pow|r?sqrt|exp|log|neg|abs|mean|sum|where|sigmoid|tanh|silu|gelu"
    r"|softmax|log_softmax|lerp|addcmul|addcdiv|square|clamp|to_copy|copy|cat|erf|reciprocal)_?"
)
_GPU_ELEMENTWISE_ADVICE = (
    "element-wise work that reads and writes the whole tensor each time: torch.compile joins it to "
    "one kernel; fused operators (rms_norm, scaled_dot_product_attention, fused=True of an optimizer)"
)
_GPU_INDEX = re.compile(r"aten::(_?index_put\w*|index|nonzero)|.*indexing_backward.*")
_GPU_INDEX_ADVICE = (
    "embedding or index_select instead of x[index], whose gradient sorts the indices, and "
    "masked_fill_ or where instead of x[mask] = v"
)
_WORK_ADVICE = (
    "the work itself: bfloat16 or float16, sizes that are multiples of 16 (better 256), and no "
    "product that is computed twice (recomputation) where memory is left"
)
_UPDATE_ADVICE = (
    "the update itself, fused already: states in bfloat16, or spread over the ranks (ZeRO, a "
    "distributed optimizer), so that each reads and writes less"
)
_ASKED = [
    "basis", "communication", "core", "duration_ns", "function", "input_shapes", "line", "output_shapes", "path",
    "start_ns", "type",
]  # fmt: skip
_ELSE = "look at the line and the shapes; the call with the largest time first"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for each Type with a share of the compute time that matters."""
    kernels, whole = recording.kernels[_ASKED], compute_ns(recording)
    of_step = _OF_STEP * recording.step_ns * max(1, recording.step_count)
    least = max(1.0, min(PRIORITY * whole, max(_HOT * whole, of_step)))
    aside = kernels["communication"].to_numpy(bool)
    left = ~(aside | is_named(kernels, COPIES, "type"))  # NPU410 tells those
    masked = rows_where(kernels, left & _by_mask(kernels))
    if masked["duration_ns"].sum() >= least:
        left &= ~kernels.index.isin(masked.index)
        yield replace(_observation(_types(masked), masked, whole, recording), advice=_BY_MASK)
    tables = rows_where(kernels, left & _of_tables(kernels))
    if tables["duration_ns"].sum() >= least:
        left &= ~kernels.index.isin(tables.index)
        seen = _observation(_types(tables), tables, whole, recording)
        yield replace(seen, advice=_TABLE, is_work=False)
    lists = rows_where(kernels, left & is_named(kernels, _OF_LISTS, "type"))
    if lists["duration_ns"].sum() >= least:
        left &= ~kernels.index.isin(lists.index)
        yield _observation(_types(lists), lists, whole, recording)
    for rows in _chains(kernels, left, least):
        left &= ~kernels.index.isin(rows.index)
        yield _observation(_types(rows), rows, whole, recording)
    kinds = kernels["type"][left]
    totals = kernels["duration_ns"][left].groupby(kinds, observed=True).sum()
    hot = totals[totals >= least]
    for kind in hot.sort_values(ascending=False, kind="stable").index:
        rows = rows_where(kernels, left & (kernels["type"] == kind).to_numpy())
        yield _observation(str(kind), rows, whole, recording)


def _by_mask(kernels: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which kernels are an IndexPut and the NonZero before it: an index that is a mask.

    That index_put_ looks up what is true in its index proves the dtype, whatever things are called.
    The gradient of ``x[mask]`` is an IndexPut as well, and no assignment; that of an assignment
    goes with it.
    """
    found = np.zeros(len(kernels), np.bool_)
    looks = is_named(kernels, r"NonZero(V2)?", "type")
    every = is_named(kernels, r"IndexPut\w*", "type")
    puts = every & ~is_named(kernels, "forward(-function)?", "basis")
    if not looks.any() or not puts.any():
        return found
    order = np.argsort(kernels["start_ns"].to_numpy(), kind="stable")
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    ahead = np.sort(number[looks])
    at = np.searchsorted(ahead, number) - 1
    before = np.where(at >= 0, ahead[at.clip(min=0)], -_NEAR - 1)
    found = puts & (number - before <= _NEAR)
    at = np.flatnonzero((every | looks) & (kernels["line"] > 0).to_numpy())
    lines = kernels[["path", "line"]].iloc[at].groupby(["path", "line"], observed=True).ngroup()
    asked = lines.isin(lines[found[at]]).to_numpy()
    found[order[before[found]]] = True
    found[at[asked]] = True
    return found


def _of_tables(kernels: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which kernels make, and apply, the gradient of a table of which few rows are looked up."""
    found = np.zeros(len(kernels), np.bool_)
    makes = is_named(kernels, _TABLE_GRADIENT, "type")
    updates = is_named(kernels, _UPDATE.pattern, "type")
    if not makes.any() or not updates.any():
        return found
    asked = np.flatnonzero(makes | updates)
    given, made = (
        kernels[name].iloc[asked].astype(str) for name in ("input_shapes", "output_shapes")
    )
    tables = set()
    for row in np.flatnonzero(makes[asked]).tolist():
        table, gradient = shapes(made.iloc[row])[0], shapes(given.iloc[row])[0]
        if elements(table) >= _SPARSE * elements(gradient) > 0:
            tables.add(table)
            found[asked[row]] = True
    own = np.flatnonzero(updates[asked])
    found[asked[own]] = [shapes(cell)[0] in tables for cell in given.iloc[own]]
    return found


def _chains(
    kernels: pd.DataFrame, chosen: NDArray[np.bool_], least: float
) -> Iterator[pd.DataFrame]:
    """Yield chosen element-wise kernels of different Types that one line asks for, if they are hot.

    ``x * torch.tanh(F.softplus(x))`` is Exp, Adds, Log, Tanh and Mul: one finding, not five of
    which none names the expression. Where no line is known, those on tensors of one shape.
    """
    kinds = kernels["type"].array
    chained = [
        _advice(str(kind)) == _ELEMENTWISE or _GPU_ELEMENTWISE.fullmatch(str(kind)) is not None
        for kind in kinds.categories
    ]
    rows = rows_where(kernels, chosen & np.array([*chained, False], np.bool_)[kinds.codes])
    known = (rows["path"] != "").to_numpy()
    shaped = ~known & (rows["output_shapes"] != "").to_numpy()
    groups = [
        found
        for where, keys in ((known, ["path", "line"]), (shaped, ["output_shapes"]))
        for found in _hot_groups(rows_where(rows, where), keys, least)
    ]
    for _, found in sorted(groups, key=lambda group: -group[0]):
        if _takes_turns(found):
            yield found


def _hot_groups(
    rows: pd.DataFrame, keys: list[str], least: float
) -> Iterator[tuple[int, pd.DataFrame]]:
    """Yield the groups of rows with equal keys that take long enough, and how long."""
    groups = rows.groupby(keys, observed=True)
    spent = groups["duration_ns"].sum().to_numpy()
    number = groups.ngroup().to_numpy()
    for at in np.flatnonzero(spent >= least).tolist():
        yield int(spent[at]), rows_where(rows, number == at)


def _takes_turns(rows: pd.DataFrame) -> bool:
    """Tell whether kernels of different Types follow each other, as those of an expression do.

    120 norms and then 120 products on one shape are two things.
    """
    codes = rows["type"].cat.codes.to_numpy()[
        np.argsort(rows["start_ns"].to_numpy(), kind="stable")
    ]
    return 2 * int((codes[1:] != codes[:-1]).sum()) >= len(codes) - 1 > 0


def _types(rows: pd.DataFrame) -> str:
    """Return the Types of some kernels, those first that take longest: ``Mul, Exp and 3 more``."""
    spent = rows.groupby("type", observed=True)["duration_ns"].sum()
    ranked = spent.sort_values(ascending=False, kind="stable").index
    names = [shorten(str(name)) for name in ranked]
    more = len(names) - _MOST_TYPES
    if more > 1:
        return f"{', '.join(names[:_MOST_TYPES])} and {more} more Types"
    return ", ".join(names)


def _observation(kind: str, rows: pd.DataFrame, whole: int, recording: Recording) -> Observation:
    spent = int(rows["duration_ns"].sum())
    cost, steps = per_step(spent, recording), max(1, recording.step_count)
    updates = _UPDATE.fullmatch(kind) is not None
    of_host = bool((rows["core"] == "CPU").all())  # no device was recorded: what takes long, does
    is_work = not of_host and (updates or _WORK.fullmatch(kind) is not None)
    work_advice = _UPDATE_ADVICE if updates else _WORK_ADVICE
    of_step, of_computing = percent(share(cost, recording)), percent(spent / whole)
    count = format_count(len(rows) / steps, "call" if of_host else "kernel")
    several = len(rows["type"].unique()) > 1
    kind = kind if several else shorten(kind)
    what = (
        f"{kind} takes {milliseconds(cost)} per step ({of_step} of the step, {of_computing} of the "
        f"compute time) in {count}"
    )
    if several:
        what = (
            f"{kind} together take {milliseconds(cost)} per step ({of_step} of the step, "
            f"{of_computing} of the compute time) in {count}"
        )
    return Observation(
        what=what,
        evidence=tuple(_shapes(rows, steps)),
        cost_ns=cost,
        basis="nothing in the dump tells how much of it can go",
        places=places(rows, rows["duration_ns"].to_numpy(), recording),
        kernels=Labels(rows.index),
        advice=work_advice if is_work else _advice(str(rows["type"].iloc[0])),
        gpu_advice=_gpu_advice(str(rows["type"].iloc[0])),
        is_work=is_work,
    )


def _advice(kind: str) -> str:
    found = (text for pattern, text in _BY_TYPE if re.fullmatch(pattern, kind))
    return next(found, _ELSE)


def _gpu_advice(kind: str) -> str:
    if _GPU_INDEX.fullmatch(kind):
        return _GPU_INDEX_ADVICE
    return _GPU_ELEMENTWISE_ADVICE if _GPU_ELEMENTWISE.fullmatch(kind) else ""


def _shapes(rows: pd.DataFrame, steps: int) -> Iterator[tuple[str, str]]:
    times = rows["duration_ns"].to_numpy()
    for cell, spent, count in list_costliest(rows["input_shapes"], times, _MOST_SHAPES):
        per = f"{milliseconds(spent / steps)} per step"
        yield f"on {cell}", f"{format_count(count / steps, 'kernel')}, {per}"


RULE = Diagnostic(
    id="NPU310",
    name="hot-operator",
    summary="one Type of kernel takes much of the time",
    advice=_ELSE,
    check=check,
    yields=2,
    gpu_advice=_ELSE,
)
