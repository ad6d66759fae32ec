"""Matrix products and convolutions run in float32.

What: MatMul and convolutions with float32 operands take 5 % of the compute time or more.

Why it is slow on the NPU: the cube is made for half precision; float32 takes several times as long
and moves twice the bytes. HF32 keeps the exponent of float32 and rounds its mantissa inside of the
product only.

Evidence: recorded dtypes and time of these kernels, without those that HF32 Eligible names.

Use instead: ``torch.npu.matmul.allow_hf32 = True`` (off by default;
``torch.npu.conv.allow_hf32`` is on), or mixed precision: ``torch.autocast("npu",
dtype=torch.bfloat16)``.

Safety: advice; HF32 keeps 10 of 23 bits of the mantissa, bfloat16 7. Check the accuracy. A database
does not say whether HF32 is on already, kernel_details.csv does.

References: HF32 in the API reference of torch_npu; HF32 Eligible of kernel_details.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.chips import find_chips
from npufix.rules.shared.quantities import percent
from npufix.rules.shared.recording.kernel_groups import takes_too_much, tell_together
from npufix.rules.shared.recording.observing import (
    compute_ns,
    computing,
    is_named,
    runs_on_gpu,
)
from npufix.rules.shared.recording.recorded_cells import dtypes, per_row
from npufix.rules.shared.recording.versions import chip_families

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Observation, Recording

_FAMILIES = ("A2", "A3")
"""Of a chip that no dump names: what most of them are."""
_PRODUCTS = r"(Batch)?MatMul(V\d|Common)?|GroupedMatmul\w*|Conv[23]D\w*|Conv3DV2"
_KERNELS_OF_GPU = (
    r"(void )?(\w+_)?(sgemm|scudnn)\w*|(void )?cutlass::Kernel2?<\w+_simt_sgemm_.*"
    r"|.*(implicit_convolve_sgemm|(dgrad|wgrad|fprop)\w*_engine<float).*|Cijk_\w+?_SB_\w+"
)
"""Of cuDNN and cuBLAS (``volta_sgemm_64x64_nt``; of CUTLASS where it is ``simt``), and of rocBLAS,
which names its dtypes so."""
_LIKELY = 0.95
"""Of what the matrix unit gains: casts come in between, and some products wait for memory."""
_OF_HALF = 0.5
"""Of its rate in half precision the matrix unit reaches so much in HF32: twice the bytes."""
_OFF = 'torch.npu.{}.allow_hf32 = True; or torch.autocast("npu", dtype=torch.bfloat16)'


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all such kernels together."""
    if runs_on_gpu(recording):
        yield from _on_gpu(recording)
        return
    rows = computing(recording, _PRODUCTS)
    rows = rows[per_row(rows, ["input_dtypes"], _is_float32) > 0]
    recorded = rows["hf32"].isin(["YES", "NO"]).all()
    rows = rows[(rows["hf32"] != "YES").to_numpy()]
    if not takes_too_much(rows, recording):
        return
    part = int(rows["duration_ns"].sum()) / compute_ns(recording)
    spent = int(rows["duration_ns"].sum())
    saved, basis = _saved(spent, recording)
    yield from tell_together(
        "matrix products and convolutions run in float32",
        rows,
        recording,
        basis=basis,
        saved_ns=saved,
        # The switch is the first advice: what is left is as much longer as HF32 is slower.
        likely_ns=None if saved is None else _LIKELY * (spent - (spent - saved) / _OF_HALF),
        evidence=(("of the compute time", percent(part)),),
        advice=_OFF.format(_most(rows)) if recorded else "",
    )


def _on_gpu(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for the kernels that say so in their names; TF32 has others."""
    kernels = recording.kernels
    rows = kernels[is_named(kernels, _KERNELS_OF_GPU, "name")]
    if takes_too_much(rows, recording):
        part = int(rows["duration_ns"].sum()) / compute_ns(recording)
        yield from tell_together(
            "matrix products and convolutions run in float32",
            rows,
            recording,
            basis="what lower precision takes is not in the dump",
            saved_ns=None,
            evidence=(("of the compute time", percent(part)),),
        )


def _saved(spent: int, recording: Recording) -> tuple[float | None, str]:
    """Return the most that half precision saves of a time: the matrix unit is so much faster."""
    named = recording.environment.chip
    families = chip_families(recording.environment, recording.kernels["core"].cat.categories)
    chips = find_chips(named, families) if named else find_chips("?", families or _FAMILIES)
    rates = [chip.tflops for chip in chips if {"fp32", "bf16"} <= {*chip.tflops}]
    if not rates:
        return None, "what lower precision takes is not in the dump, and its chip is not known"
    slower = min(own["fp32"] / own["bf16"] for own in rates)
    if len(rates) > 1:
        return spent * (
            1 - slower
        ), "at most as much faster as the matrix units of such chips are in bf16"
    return spent * (1 - slower), "at most as much faster as the matrix unit of this chip is in bf16"


def _most(rows: pd.DataFrame) -> str:
    """Return the switch of most of them: convolutions have their own."""
    is_conv = is_named(rows, "Conv.*", "type")
    spent = rows["duration_ns"].to_numpy()
    return "conv" if 2 * int(spent[is_conv].sum()) > int(spent.sum()) else "matmul"


def _is_float32(inputs: str) -> float:
    return dtypes(inputs)[:2] == ["FLOAT", "FLOAT"]


RULE = Diagnostic(
    id="NPU308",
    name="single-precision-products",
    summary="matrix products and convolutions run in float32",
    advice=(
        "torch.npu.matmul.allow_hf32 = True (unless it is set: this dump does not say); or "
        'torch.autocast("npu", dtype=torch.bfloat16)'
    ),
    check=check,
    requires="chip A2 A3 A5",
    yields=1,
    gpu_advice=(
        "lower precision on the tensor cores: mixed precision (torch.autocast with bfloat16, before "
        "Ampere with float16 and a GradScaler), or TF32, since Ampere: "
        'torch.set_float32_matmul_precision("high"), torch.backends.cudnn.allow_tf32'
    ),
)
