"""Sets of conditions that hold in well-known families of programs: ``--assume``."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SETS: Mapping[str, frozenset[str]] = {
    # One dtype throughout, no autocast; RoPE without a scale on its cosines; gated SiLU, or
    # the tanh form of GELU where the configuration names it (Gemma); inputs of (batch, sequence,
    # hidden).
    "transformers-decoder": frozenset({
        "activation-is-gelu-tanh", "activation-is-silu", "cosines-within-one", "four-dimensional",
        "int-repeats", "is-tensor", "joining-pays", "last-dimension", "number-eps", "number-scale",
        "one-dimensional-weight", "rotary-limits", "same-dtype", "same-heads", "same-shape",
        "table-dtype", "weight-given",
    }),
    # Heads and losses of detectors: tensors and their masks on one device, labels below 2**31.
    "dense-detection": frozenset({
        "boolean-mask", "is-tensor", "no-ties", "one-column-index", "row-mask", "same-device",
        "same-rank-mask", "value-fits-dtype", "vector-mask",
    }),
    # A plain training loop: float32 parameters on one device, all of them used in every step.
    "plain-training": frozenset({
        "float32-or-float16-parameters", "gradients-for-all-parameters", "kept-gradients",
        "kept-parameters", "no-grad-scaler", "number-learning-rate", "parameters-on-npu",
        "unsharded-parameters",
    }),
}  # fmt: skip
"""What a reader grants at once in such programs, and the verifier takes for granted."""


def conditions_of(names: Iterable[str]) -> frozenset[str]:
    """Return the conditions of these sets."""
    return frozenset().union(*(SETS[name] for name in names))
