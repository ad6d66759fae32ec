"""An optimizer step that runs as many small kernels.

What: ``optimizer.step()`` of torch.optim, of timm, apex or a file of your own launches several
kernels for each parameter, or one for each of many lists of them.

Why it is slow on the NPU: each kernel reads and writes parameters, gradients and moments once more,
and the host launches thousands of them. A fused optimizer reads and writes them once.

Evidence: the ``Optimizer.step#...`` calls of the host and the kernels of the operators in them; where
no step is marked, element-wise kernels of a few Types that repeat in one order ten times or more,
and ForeachX kernels of four Types or more.
Without a step that runs in ApplyAdamWV2 or another kernel of an optimizer already.

Use instead: for AdamW ``torch.optim.AdamW(..., fused=True)``, one ApplyAdamWV2 per parameter; not
with a GradScaler, whose scale and found_inf that kernel ignores. Else the class of torch_npu that
combines parameters, gradients and moments into one tensor each: ``torch_npu.optim.NpuFusedSGD``,
``NpuFusedAdam``, ``NpuFusedAdamW``, ``NpuFusedAdadelta``, ``NpuFusedRMSprop``,
``NpuFusedRMSpropTF``, ``NpuFusedLamb``, ``NpuFusedAdamP``, ``NpuFusedBertAdam``. In an optimizer of
your own ``npu_apply_fused_adamw_v2`` of MindSpeed.

Safety: advice. The classes of torch_npu take float32 and float16 parameters that keep their memory
and their gradients: no bfloat16, no ``zero_grad(set_to_none=True)``, no FSDP, DeepSpeed or ZeRO, no
``.cpu()`` in between; they need memory for the combined copies. The rule fused-optimizer finds the
lines and checks this.

References: fusion optimizer page of the migration guide; torch_npu.optim in the API reference of
Ascend Extension for PyTorch; npu_apply_fused_adamw_v2.md of MindSpeed.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, TypedDict

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.observing import find_named, is_named, per_step, places, share
from npufix.rules.shared.recording.pauses import measure_launches_ns
from npufix.rules.shared.recording.recorded_cells import CELLS, per_row, tensor_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording

_STEP = r"Optimizer\.step#(\w+)\.step"
_FUSED = re.compile(r"Apply\w+|Fused(Sgd|Adam)\w*|aten::_fused_\w+")
_FOREACH = ("Foreach", "aten::_foreach_")
"""How the Types of kernels over lists of tensors begin; a GPU has the names of operators."""
_BY_CLASS = {
    "AdamW": "torch.optim.AdamW(..., fused=True) or torch_npu.optim.NpuFusedAdamW",
    "SGD": "torch_npu.optim.NpuFusedSGD",
    "Adam": "torch_npu.optim.NpuFusedAdam",
    "Adadelta": "torch_npu.optim.NpuFusedAdadelta",
    "RMSprop": "torch_npu.optim.NpuFusedRMSprop",
    "RMSpropTF": "torch_npu.optim.NpuFusedRMSpropTF",
    "Lamb": "torch_npu.optim.NpuFusedLamb",
    "AdamP": "torch_npu.optim.NpuFusedAdamP",
    "BertAdam": "torch_npu.optim.NpuFusedBertAdam",
}
_UPDATES = re.compile(
    r"Axpy\w*|Adds?|AddV2|Subs?|Muls?|Addc(mul|div)|Sqrt|Div|RealDiv|Lerp|Pow|Square|Neg|Sign"
    r"|LpNorm\w*|Maximum|Rsqrt|Reciprocal|Zeros?Like|TensorMove|Fill"
    r"|aten::(add|sub|mul|div|lerp|addcmul|addcdiv|sqrt|rsqrt|pow|neg|sign|maximum|copy|zero|fill)_?"
)
"""What the updates of optimizers and the clipping before them are written in."""
_CLIP = (
    "clip_grad_norm_(..., foreach=True), or clip_grad_norm_fused_ of an optimizer of torch_npu.optim; "
    "torch.optim.AdamW(..., fused=True)"
)
_SCALES = re.compile(r"Muls?")
_LIST, _ONCE = 48, 0.45
"""Tensors for one kernel over a list of them, and how much of what the kernels of an SGD with momentum
move is parameter, gradient and momentum read, two of them written: 5 of 11."""
_BY_LISTS = "kernels over lists of tensors move as much in fewer launches"
_ADAM_MOVES = 7
_ROOTS, _ROOTS_OF_LISTS = "Sqrt|aten::sqrt", "ForeachSqrt"
"""One for each parameter, and one for up to 50 of them."""
_SPREAD = 0.3
"""How far a fused kernel is from the bandwidth of those in its place."""
_UNKNOWN = "what a fused step takes depends on the sizes of the parameters: measure it"
_BY_BYTES = "a fused Adam moves seven tensors for each parameter, at the bandwidth of these kernels"
_LONGEST_UPDATE = 16
"""Kernels for one parameter; AdamW in small kernels takes 10 to 13."""
_MOST_TYPES = 4
_HOT = 0.05
"""Share of the step from which a few Foreach kernels are told."""
_LISTS = 4
"""Types of such kernels from which they are an optimizer."""
_FEW = 10
"""The classes of torch_npu launch about as many kernels per group and dtype."""


class _Gain(TypedDict, total=False):
    cost_ns: int
    idle_ns: int
    kernels: Labels
    basis: str
    saving_ns: tuple[int, int]
    instead: tuple[int, ...]


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for each class of optimizers that has a fused counterpart."""
    steps = find_named(recording.host_ops, _STEP)
    for name in sorted({str(step) for step in steps["name"].unique()}):
        found = re.fullmatch(_STEP, name)
        if found is not None and found[1] in _BY_CLASS:
            own = _below(recording, steps[steps["name"] == name])
            yield from _observation(recording, own, found[1])
    marked = _below(recording, steps)
    yield from _observe_unmarked(recording, marked)
    yield from _observe_unmarked_lists(recording, marked)


def _observe_unmarked_lists(recording: Recording, marked: pd.DataFrame) -> Iterator[Observation]:
    """Yield one observation where kernels over lists of tensors update them, and no step is marked.

    Eight Types of them are an optimizer; one or two scale gradients or average weights.
    """
    kernels = recording.kernels
    types = [str(name) for name in kernels["type"].cat.categories]
    if any(_FUSED.fullmatch(name) for name in types):
        return
    lists = np.array([*(name.startswith(_FOREACH) for name in types), False])
    rows = kernels[lists[kernels["type"].cat.codes] & ~kernels.index.isin(marked.index)]
    if rows["type"].nunique() >= _LISTS:
        yield from _observe_updates(recording, rows, in_lists=True)


def _observe_unmarked(recording: Recording, marked: pd.DataFrame) -> Iterator[Observation]:
    """Yield one observation where the same few kernels run for one parameter after the other."""
    kernels = recording.kernels
    others = kernels["communication"].to_numpy(bool) | kernels.index.isin(marked.index)
    yield from _observe_updates(recording, find_repeated_updates(kernels, ~others), in_lists=False)


def _observe_updates(
    recording: Recording, rows: pd.DataFrame, *, in_lists: bool
) -> Iterator[Observation]:
    """Yield one observation of kernels that update parameters, where they are worth it."""
    cost, steps = per_step(int(rows["duration_ns"].sum()), recording), max(1, recording.step_count)
    if share(cost, recording) < (_HOT if in_lists else LEAST_SHARE):
        return
    kinds = rows.groupby(rows["type"].astype(str))["duration_ns"].sum()
    kinds = kinds.sort_values(ascending=False, kind="stable")
    if in_lists:
        what = (
            f"updates of lists of parameters take {milliseconds(cost)} per step "
            f"({percent(share(cost, recording))} of the step) in "
            f"{format_count(len(rows) / steps, 'kernel')}: {', '.join(kinds.index[:_MOST_TYPES])}"
        )
    elif _clips_only(kinds.index):
        what = (
            f"clipping the gradient of one parameter after the other takes {milliseconds(cost)} per "
            f"step ({percent(share(cost, recording))} of the step) in "
            f"{format_count(len(rows) / steps, 'small kernel')}: {', '.join(kinds.index[:_MOST_TYPES])}"
        )
    else:
        what = (
            f"an update of one parameter after the other takes {milliseconds(cost)} per step "
            f"({percent(share(cost, recording))} of the step) in "
            f"{format_count(len(rows) / steps, 'small kernel')}: {', '.join(kinds.index[:_MOST_TYPES])}"
        )
    yield Observation(
        what=f"{what}{_say_idle(rows, recording)}",
        evidence=tuple((str(kind), milliseconds(ns / steps)) for kind, ns in kinds.items()),
        **_gain(rows, cost, recording),
        places=places(rows, rows["duration_ns"].to_numpy(), recording),
        advice=_CLIP if any(str(kind).startswith("LpNorm") for kind in kinds.index) else "",
    )


def _gain(rows: pd.DataFrame, cost: int, recording: Recording) -> _Gain:
    """Return what the kernels cost, and what one fused Adam for each parameter would.

    It reads parameter, gradient and two moments and writes all but the gradient; one root is taken
    for each parameter.
    """
    idle = measure_launches_ns(rows, recording)
    about = min(cost + idle, recording.step_ns)
    whole = _Gain(cost_ns=about, idle_ns=about - cost, kernels=Labels(rows.index), basis=_UNKNOWN)
    roots = rows[is_named(rows, _ROOTS, "type")]
    moved = float(per_row(rows, CELLS, _count_moved).sum())
    needed = _ADAM_MOVES * float(per_row(roots, CELLS[:2], _count_first).sum())
    lists = rows[is_named(rows, _ROOTS_OF_LISTS, "type")]
    needed += _ADAM_MOVES * float(per_row(lists, CELLS[:2], _count_all).sum())
    parameters = len(roots) + round(float(per_row(lists, CELLS[:1], _count_tensors).sum()))
    if not parameters and not rows["type"].astype(str).str.startswith(_FOREACH).any():
        return {**whole, **_gain_by_lists(rows, cost, recording)}
    if not 0 < needed < moved:
        return whole
    time = float(rows["duration_ns"].sum()) * needed / moved
    low, high = round((1 - _SPREAD) * time), round((1 + _SPREAD) * time)
    saving = (max(0, cost - per_step(high, recording)), max(0, cost - per_step(low, recording)))
    instead = (parameters, low, high)
    return {**whole, "saving_ns": saving, "instead": instead, "basis": _BY_BYTES}


def _gain_by_lists(rows: pd.DataFrame, cost: int, recording: Recording) -> _Gain:
    """Return what kernels over lists of tensors would take: no less than the quickest of these do.

    A norm of 30 kB takes what any kernel does at least; that of 30 MB is as long in a list.
    """
    times = rows["duration_ns"].to_numpy(np.float64)
    clips = _clips_only(rows["type"].astype(str).unique())
    moved = per_row(rows, CELLS, _count_moved)
    rate = float((moved / np.maximum(times, 1)).max())
    if not rate:
        return {}
    whole = round(times.sum())
    quick = float(moved.sum()) / rate
    # A fused update moves each tensor once, where an operator for each term moves it again.
    bounds = (quick, (1 + _SPREAD) * quick) if clips else (_ONCE * quick, quick)
    least, likely = (round(min(whole, bound)) for bound in bounds)
    saved = max(0, cost - per_step(least, recording))
    instead = (math.ceil(len(rows) / _LIST), least, whole, likely)
    return _Gain(saving_ns=(0, saved), instead=instead, basis=_BY_LISTS)


def _clips_only(kinds: Iterable[str]) -> bool:
    """Tell whether nothing but norms is taken, and gradients are scaled by what comes of them."""
    norms = {kind for kind in kinds if kind.startswith("LpNorm")}
    return bool(norms) and all(_SCALES.fullmatch(kind) for kind in kinds if kind not in norms)


def _say_idle(rows: pd.DataFrame, recording: Recording) -> str:
    idle = measure_launches_ns(rows, recording)
    if share(idle, recording) < LEAST_SHARE:
        return ""
    return f"; for {milliseconds(idle)} the device waits for their launches"


def _count_moved(inputs: str, dtypes: str, outputs: str) -> float:
    """Return the bytes of all tensors; a GPU records no results, which are like the first."""
    return sum(tensor_bytes(inputs, dtypes)) + sum(
        tensor_bytes(outputs or inputs.partition(";")[0], dtypes)
    )


def _count_all(inputs: str, dtypes: str) -> float:
    return sum(tensor_bytes(inputs, dtypes))


def _count_tensors(inputs: str) -> float:
    return inputs.count(";") + 1


def _count_first(inputs: str, dtypes: str) -> float:
    return tensor_bytes(inputs, dtypes)[0]


def find_repeated_updates(kernels: pd.DataFrame, chosen: NDArray[np.bool_]) -> pd.DataFrame:
    """Return those of the chosen that are element-wise and that a short sequence of Types repeats.

    ``Axpy, Muls, Axpy`` for each of 160 parameters: each Type is that of three kernels before.
    Between the element-wise kernels of a model there are products, so that these repeat nothing;
    70 Add in a row are no update, unless gradients are clipped: 200 norms and 200 Mul.
    """
    rows = np.flatnonzero(chosen)
    rows = rows[np.argsort(kernels["start_ns"].to_numpy()[rows], kind="stable")]
    codes = kernels["type"].cat.codes.to_numpy()[rows]
    names = [str(name) for name in kernels["type"].cat.categories]
    updates = np.array([*(_UPDATES.fullmatch(name) is not None for name in names), False])[codes]
    clips = np.array([*(name.startswith("LpNorm") for name in names), False])[codes].any()
    found = np.zeros(len(codes), np.bool_)
    for period in range(1, _LONGEST_UPDATE + 1):
        same = (codes[period:] == codes[:-period]) & updates[period:] & updates[:-period]
        edges = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]]).astype(np.int8)))
        for begin, end in zip(edges[::2], edges[1::2], strict=True):
            run = slice(begin, end + period)
            if end - begin >= _FEW * period and (clips or len(set(codes[run])) > 1):
                found[run] = True
    repeated: pd.DataFrame = kernels.iloc[rows[found]]
    return repeated


def _below(recording: Recording, calls: pd.DataFrame) -> pd.DataFrame:
    """Return the kernels of the operators that run during calls, which do not overlap.

    When the operator ran counts, not when the kernel was launched: a queue may lie in between.
    """
    start = np.sort(calls["start_ns"].to_numpy())
    end = np.sort((calls["start_ns"] + calls["duration_ns"]).to_numpy())
    kernels = recording.kernels
    known = (kernels["host_op"] >= 0).to_numpy() & ~kernels["communication"].to_numpy(bool)
    rows: pd.DataFrame = kernels[known]
    asked = recording.host_ops["start_ns"].reindex(rows["host_op"]).to_numpy(np.float64)
    inside = np.searchsorted(start, asked, side="right") > np.searchsorted(end, asked, side="right")
    found: pd.DataFrame = rows[inside & ~np.isnan(asked)]
    return found


def _observation(recording: Recording, rows: pd.DataFrame, name: str) -> Iterator[Observation]:
    spent = rows["duration_ns"].to_numpy()
    cost, steps = per_step(int(spent.sum()), recording), max(1, recording.step_count)
    types = rows["type"].astype(str)
    # Eight Foreach kernels of a whole model read and write all of it eight times.
    is_foreach = bool(types.str.startswith(_FOREACH).any()) and share(cost, recording) >= _HOT
    if share(cost, recording) < LEAST_SHARE or (len(rows) / steps < _FEW and not is_foreach):
        return
    if types.map(lambda kind: _FUSED.fullmatch(kind) is not None).any():
        return
    totals = rows.groupby(types)["duration_ns"].agg(["sum", "size"])
    totals = totals.sort_values("sum", ascending=False, kind="stable").head(4)
    yield Observation(
        what=(
            f"{name} takes {milliseconds(cost)} per step ({percent(share(cost, recording))} of the "
            f"step) in {format_count(len(rows) / steps, 'kernel')}{_say_idle(rows, recording)}"
        ),
        evidence=(
            *(
                (str(kind), f"{n} kernels, {milliseconds(ns)}")
                for kind, ns, n in totals.itertuples()
            ),
            *([] if "GPU" in rows["core"].to_numpy() else [("fused counterpart", _BY_CLASS[name])]),
        ),
        **_gain(rows, cost, recording),
        places=places(rows, spent, recording),
        advice="" if "GPU" in rows["core"].to_numpy() else _BY_CLASS[name],
    )


RULE = Diagnostic(
    id="NPU128",
    name="optimizer-in-small-kernels",
    summary="the optimizer step runs as many small kernels",
    advice=(
        "torch.optim.AdamW(..., fused=True), without a GradScaler; torch_npu.optim.NpuFusedSGD, "
        "NpuFusedAdam, ... for parameters in float32 and float16 that keep their memory"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1",
    gpu_advice="fused=True (Adam, AdamW, SGD, Adagrad), else foreach=True, of torch.optim",
)
