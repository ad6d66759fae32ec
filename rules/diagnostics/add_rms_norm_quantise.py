"""An AddRmsNorm whose result is cast or quantised at once.

What: quantised inference normalises with ``npu_add_rms_norm`` and then calls ``npu_dynamic_quant`` or
``npu_quantize`` for the int8 product behind it, or ``.float()``.

Why it is slow on the NPU: the normalised activation is written in half precision only to be read
and written as int8. AddRmsNormDynamicQuant, AddRmsNormQuant and AddRmsNormCast write it once.

Evidence: AddRmsNorm followed by DynamicQuant, AscendQuant or Cast of a tensor as large as its
result, in a run without a backward pass.

Use instead: graph mode of torchair (``npugraph_ex``), whose passes fuse these pairs;
``torch_npu.npu_add_rms_norm_quant`` and ``npu_add_rms_norm_dynamic_quant`` where the installed
version has them.

Safety: advice. Inference only. The quantising kernels want a last dimension of a multiple of
32 bytes.

References: fusion passes of npugraph_ex in the documentation of torchair; aclnnAddRmsNormQuant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.fusable import Fusable, fusable, passes_on, trains

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

_KINDS = (
    ("DynamicQuant(V2)?", "AddRmsNormDynamicQuant"),
    ("AscendQuant(V2)?|Quantize", "AddRmsNormQuant"),
    ("Cast", "AddRmsNormCast"),
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for each kind of conversion."""
    if trains(recording):
        return
    for conversion, operator in _KINDS:
        yield from fusable(
            recording,
            Fusable(
                parts=("AddRmsNorm|InplaceAddRmsNorm", conversion),
                saved=(1,),
                operator=operator,
                basis="at most all these conversions",
                links=passes_on((0, 1)),
            ),
        )


RULE = Diagnostic(
    id="NPU130",
    name="add-rms-norm-quantise",
    summary="the result of AddRmsNorm is written only to be converted",
    advice="graph mode of torchair (npugraph_ex), which fuses AddRmsNorm with Cast and quantisation",
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
