"""An AddRmsNorm or RmsNorm whose result is cast or quantised at once.

What: quantised inference normalises with ``npu_add_rms_norm`` and then calls ``npu_dynamic_quant`` or
``npu_quantize`` for the int8 product behind it, or ``.float()``; a router wants the result of
``npu_rms_norm`` in float32, too.

Why it is slow on the NPU: the normalised activation is written in half precision only to be read
and written as int8. AddRmsNormDynamicQuant, AddRmsNormQuant and AddRmsNormCast write it once.

Evidence: AddRmsNorm followed by DynamicQuant, AscendQuant or Cast of a tensor as large as its
result, in a run without a backward pass; RmsNorm of at most 128 rows followed by a Cast to float32.

Use instead: graph mode of torchair (``npugraph_ex``), whose passes fuse these pairs;
``torch_npu.npu_add_rms_norm_quant`` and ``npu_add_rms_norm_dynamic_quant`` where the installed
version has them; behind RmsNorm ``torch.ops._C_ascend.npu_rms_norm_cast`` of vllm-ascend, which
gives both results.

Safety: advice. Inference only. The quantising kernels want a last dimension of a multiple of
32 bytes. RmsNormCast was measured on a 910B with 7,168 columns: 10.6 instead of 11.7 us for 128
rows, 25.7 instead of 23.0 us for 512, so that more rows are not told.

References: npu_rms_norm_cast in vllm-ascend; fusion passes of npugraph_ex in the documentation of torchair; aclnnAddRmsNormQuant.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import Fusable, fusable, passes_on, trains
from npufix.rules.shared.recording.recorded_cells import dtype_name
from npufix.rules.shared.recording.recorded_shapes import shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording
    from npufix.rules.shared.recording.sequences import Mask, Occurrences

_ADDS = "AddRmsNorm|InplaceAddRmsNorm"
_HALF = frozenset({"BF16", "FLOAT16"})
_MOST_ROWS = 128
"""Of RmsNormCast, up to which it was measured to be faster."""


def _has_few_rows(found: Occurrences) -> Mask:
    """Tell where a norm of few rows in half precision is read by a cast, which is to float32."""
    linked: Mask = passes_on((0, 1))(found)
    read, cast = found.part(0)["input_shapes"], found.part(1)["input_dtypes"]
    few = [_has_few(str(cell)) for cell in read.cat.categories]
    half = [dtype_name(str(cell)) in _HALF for cell in cast.cat.categories]
    return (
        linked
        & np.array([*few, False], np.bool_)[read.cat.codes]
        & np.array([*half, False], np.bool_)[cast.cat.codes]
    )


def _has_few(cell: str) -> bool:
    return any(math.prod(shape[:-1]) <= _MOST_ROWS for shape in shapes(cell)[:1])


_KINDS = (
    (_ADDS, "DynamicQuant(V2)?", "AddRmsNormDynamicQuant", passes_on((0, 1))),
    (_ADDS, "AscendQuant(V2)?|Quantize", "AddRmsNormQuant", passes_on((0, 1))),
    (_ADDS, "Cast", "AddRmsNormCast", passes_on((0, 1))),
    ("RmsNorm", "Cast", "npu_rms_norm_cast of vllm-ascend", _has_few_rows),
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for each kind of conversion."""
    if trains(recording):
        return
    for norm, conversion, operator, links in _KINDS:
        yield from fusable(
            recording,
            Fusable(
                parts=(norm, conversion),
                saved=(1,),
                operator=operator,
                basis="at most all these conversions",
                links=links,
            ),
        )


RULE = Diagnostic(
    id="NPU130",
    name="add-rms-norm-quantise",
    summary="the result of AddRmsNorm or RmsNorm is written only to be converted",
    advice=(
        "graph mode of torchair (npugraph_ex), which fuses AddRmsNorm with Cast and quantisation; "
        "few rows of npu_rms_norm and .float(): torch.ops._C_ascend.npu_rms_norm_cast of vllm-ascend"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
