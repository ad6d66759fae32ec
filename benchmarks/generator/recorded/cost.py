"""How long a kernel takes: a model, not a measurement.

Ordinary kernels follow a roofline of an Atlas A2 card in fp32: a floor for starting the kernel,
bytes over the bandwidth that element-wise kernels reach, floating point operations over what the
cube unit reaches on matrices of this size. The operators that this example is about are slow on
a card for reasons that no roofline knows (they walk their indices one by one on the scalar unit,
or fall back to the control CPU). Theirs are set so that the example shows the ratios which
Huawei's tuning guide reports: IndexPutV2 around 70 % of the compute time of BERT, one_hot + sum
2.2 ms, GatherElements and RepeatInterleave 10 to 30 times slower than their replacements.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.generator.recorded.record import Tensor

BYTES_PER_US = 1.0e6  # 1 TB/s
CUBE_BYTES_PER_US = 0.6e6
FLOPS_PER_US = 4.0e7  # 40 TFLOP/s
FLOOR_US = {
    "AI_CORE": 4.0,
    "AI_VECTOR_CORE": 1.3,
    "MIX_AIV": 3.0,
    "AI_CPU": 180.0,
    "DSA_SQE": 1.8,
}


@dataclass(frozen=True)
class Walk:
    """A kernel that handles its elements one after the other."""

    start_us: float
    per_element_us: float

    def us(self, elements: int) -> float:
        """Return how long so many elements take."""
        return self.start_us + self.per_element_us * elements


INDEX_PUT = Walk(24.0, 0.0195)
INDEX_PUT_AI_CPU = Walk(180.0, 0.32)
NON_ZERO = Walk(5.0, 0.00004)
GATHER_ELEMENTS = Walk(12.0, 0.11)
SCATTER_ELEMENTS = Walk(10.0, 0.02)
REPEAT_INTERLEAVE = Walk(14.0, 0.22)
ONE_HOT = Walk(12.0, 0.006)
REDUCE_SUM_INT64 = Walk(60.0, 0.125)
SORT = Walk(9.0, 0.004)
MOST_ON_AI_CORE = 100
TOP_K = Walk(9.0, 0.0006)


def roofline_us(core: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> float:
    """Time of a kernel that reads its inputs and writes its outputs once."""
    moved = sum(tensor.nbytes for tensor in (*inputs, *outputs))
    return FLOOR_US[core] + moved / BYTES_PER_US


def matmul_us(inputs: Sequence[Tensor], output: Tensor) -> float:
    """Time of a matrix product whose inner size is the last one of its first factor."""
    moved = sum(tensor.nbytes for tensor in (*inputs, output))
    left = next(tensor for tensor in inputs if len(tensor.shape) > 1)
    flops = 2 * output.numel * left.shape[-1]
    return FLOOR_US["AI_CORE"] + max(moved / CUBE_BYTES_PER_US, flops / FLOPS_PER_US)


def is_index_put_on_ai_cpu(target: Tensor, indices: int) -> bool:
    """Tell where an A2 runs aclnnIndexPutImpl, as far as the example meets it."""
    return target.dtype in (torch.int64, torch.uint8) and indices > MOST_ON_AI_CORE
