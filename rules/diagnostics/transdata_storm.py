"""Tensors are converted between memory formats again and again.

What: kernels of TransData take 5 % of the compute time or more.

Why it is slow on the NPU: convolutions and matrix products may keep tensors in internal formats
(NC1HWC0, FRACTAL_NZ). Every other operator wants the plain one, so the tensor is converted back,
and forth again for the next convolution: each time one pass over the tensor for nothing.

Evidence: time and number of TransData kernels; conversions whose exact reverse is recorded too.

Use instead: ``torch.npu.config.allow_internal_format = False`` before the model is built (the
default on Atlas A2 and A3). Where one weight is converted at every call, convert it once:
``w.data = torch_npu.npu_format_cast(w.data, 29)``.

Safety: kernels change, so results differ by rounding. Convolutions on Atlas training series devices
may be slower on plain formats than all conversions together: measure both.

References: solution_to_top2.md of the troubleshooting guide; PETR case (2.55 s to 2.53 s per step).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import format_count
from npufix.rules.shared.recording.kernel_groups import conversion_storm, takes_too_much
from npufix.rules.shared.recording.observing import computing
from npufix.rules.shared.recording.run_settings import advice
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Recording

_FORMATS = (
    "torch.npu.config.allow_internal_format = False before the model is built; for a weight "
    "that is converted at every call: w.data = torch_npu.npu_format_cast(w.data, 29)"
)
_FORMAT_CAST = "npu::npu_format_cast"
_ONCE = (
    "convert a weight once, when the model is loaded (w.data = torch_npu.npu_format_cast(w.data, "
    "29)), not at every call"
)
_PRODUCTS = (
    'torch_npu.npu.set_option({"MM_BMM_ND_ENABLE": "enable"}) for matrix products (the default; it '
    "works where all dimensions are multiples of 16)"
)
_MATMUL = r"(Batch)?MatMul(V\d|Common)?"


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where conversions take a share of the compute time that matters."""
    rows = computing(recording, r"TransData\w*")
    if takes_too_much(rows, recording):
        steps = max(1, recording.step_count)
        evidence = (("converted and converted back", _round_trips(rows, steps)),)
        basis = "at most all conversions; kernels may take longer on plain formats than on internal"
        for found in conversion_storm("TransData", rows, evidence, basis, recording):
            # What the program itself asks for, no setting takes away.
            asked = _asks_itself(rows, recording)
            told = _ONCE if asked else advice(_FORMATS, _plain_products(recording))
            low, high = found.saving_ns or (0, 0)
            yield replace(found, advice=told, saving_ns=(high if asked else low, high))


def _asks_itself(rows: pd.DataFrame, recording: Recording) -> bool:
    """Tell whether the program converts most of it by ``npu_format_cast``, in each step."""
    asked = (
        recording.host_ops["name"].astype(str).reindex(rows["host_op"]).to_numpy() == _FORMAT_CAST
    )
    spent = rows["duration_ns"].to_numpy()
    return bool(2 * spent[asked].sum() > spent.sum())


def _plain_products(recording: Recording) -> str:
    """Return how matrix products take plain operands, if conversions are next to products."""
    around = find(recording, ("TransData", _MATMUL)), find(recording, (_MATMUL, "TransData"))
    return _PRODUCTS if any(found.count for found in around) else ""


def _round_trips(rows: pd.DataFrame, steps: int) -> str:
    if (rows["output_shapes"] == "").all():
        return "unknown, shapes were not recorded"
    return f"{format_count(_count_reversed(rows) / steps, 'pair')} per step"


def _count_reversed(rows: pd.DataFrame) -> int:
    """Return how many conversions have another one that undoes them."""
    rows = rows[(rows["input_shapes"] != "") & (rows["output_shapes"] != "")]
    source, target = (rows[name].astype(str) for name in ("input_shapes", "output_shapes"))
    there = (source + ">" + target).value_counts()
    back = (target + ">" + source).value_counts()
    both = np.minimum(there, back.reindex(there.index, fill_value=0))
    # Each pair is seen from both ends.
    return int(both.sum()) // 2


RULE = Diagnostic(
    id="NPU302",
    name="transdata-storm",
    summary="tensors are converted between memory formats again and again",
    advice=f"{_FORMATS}; {_PRODUCTS}",
    check=check,
)
