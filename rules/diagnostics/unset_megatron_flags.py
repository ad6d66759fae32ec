"""A run of Megatron leaves fused operators of MindSpeed switched off.

What: kernels asked for by files of Megatron or MindSpeed that a flag of MindSpeed replaces by one
fused kernel: RMSNorm, rotary embedding, SwiGLU or attention in small operators.

Why it is slow on the NPU: each small operator reads and writes the activations once more.

Evidence: the sequence of kernels, and the files that asked for them.

Use instead: the flag of each: ``--use-fused-rmsnorm``, ``--use-fused-rotary-pos-emb``,
``--use-fused-swiglu``, ``--use-flash-attn``.

Safety: the fused operators round differently.

References: features of MindSpeed (attention +34 %, SwiGLU +4.7 %, RMSNorm +2.7 %, RoPE +1 %).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

LEAST_SHARE = 0.005
_FOLDERS = ("megatron", "mindspeed")


@dataclass(frozen=True, slots=True)
class _Flag:
    flag: str
    what: str
    parts: tuple[str, ...]
    kept: int
    """The part that the fused kernel does not save."""


_FLAGS = (
    _Flag(
        "--use-fused-rmsnorm",
        "RMSNorm in small operators",
        (r"Pows?|Square|Mul", r"ReduceMean(D)?", r"Adds?", r"Rsqrt", r"Mul"),
        4,
    ),
    _Flag(
        "--use-fused-rotary-pos-emb",
        "rotary embedding in small operators",
        (r"Neg", r"Concat(D|V\d)?", r"Mul", r"Add(cmul)?"),
        3,
    ),
    _Flag("--use-fused-swiglu", "SwiGLU in small operators", (r"Swish", r"Mul"), 1),
    _Flag(
        "--use-flash-attn",
        "attention in small operators",
        (
            r"BatchMatMul(V\d)?",
            r"Softmax(V\d)?|Scaled(Upper|Masked)\w*Softmax\w*",
            r"BatchMatMul(V\d)?",
        ),
        2,
    ),
)
_BETWEEN = (
    "Add", "Adds", "Cast", "DropOutDoMask", "MaskedFill", "Mul", "Muls", "RealDiv", "Slice",
    "TensorMove", "Transpose",
)  # fmt: skip


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation per flag."""
    paths = recording.kernels["path"].cat.categories
    theirs = np.array([*(_is_theirs(str(path)) for path in paths), False], np.bool_)
    if not theirs.any():
        return
    for flag in _FLAGS:
        found = find(recording, flag.parts, between=_BETWEEN)
        if not found.count:
            continue
        found = found.where(theirs[found.part(0)["path"].cat.codes.to_numpy()])
        saved = found.durations.sum() - found.durations[:, flag.kept].sum()
        yield from tell_together(
            f"{flag.what}, without {flag.flag}",
            found.kernels,
            recording,
            basis="at most all but one pass over the activations",
            saved_ns=float(saved),
            least=LEAST_SHARE,
            advice=f"{flag.flag} (MindSpeed)",
            goes=True,
        )


def _is_theirs(path: str) -> bool:
    return bool(set(path.replace("\\", "/").split("/")) & set(_FOLDERS))


RULE = Diagnostic(
    id="NPU309",
    name="unset-megatron-flags",
    summary="a run of Megatron leaves fused operators of MindSpeed switched off",
    advice=" ".join(flag.flag for flag in _FLAGS),
    check=check,
)
