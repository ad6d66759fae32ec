"""One matrix product per expert, in a Python loop.

What: ``for e in experts: y[e] = x[e] @ w[e]``, or an expert module called for the tokens of each.

Why it is slow on the NPU: one launch after the other, each for few rows: the cube cores are hardly
filled and the host is hardly fast enough. A grouped product takes all experts in one kernel.

Evidence: four or more products in a row, with small kernels at most in between, whose weights have
one shape while the numbers of rows differ, as the numbers of tokens do.

Use instead: in training ``npu_gmm(x, weight, group_list=..., group_type=0)`` of
``mindspeed.ops.gmm`` (``--moe-grouped-gemm`` of MindSpeed), in inference
``torch_npu.npu_grouped_matmul([x], [weight], group_list=..., split_item=3, group_type=0)``, with the
tokens sorted by expert and the weights stacked as (experts, k, n): transposed to those of nn.Linear.

Safety: advice. ``torch_npu.npu_grouped_matmul`` has no gradient and does not say so; that of
MindSpeed has one, without a bias. Few large experts can be slower: MindSpeed measured from +44 %
(16 experts) to -2 % (8 experts). At most 128 tensors in a list, axes below 65536.

References: gmm.md and megatron-moe-gmm.md of MindSpeed; torch_npu.npu_grouped_matmul in the API
reference of Ascend Extension for PyTorch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.recording.fusable import (
    MATMUL,
    Fusable,
    fusable,
    quickest_products_ns,
)
from npufix.rules.shared.recording.observing import per_step
from npufix.rules.shared.recording.recorded_shapes import shapes

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Observation, Recording
    from npufix.rules.shared.recording.sequences import Mask, Occurrences

_IN_A_ROW = 4
_AXES = 2
_PACE = (0.95, 1.5)
"""Times as long as at the best rates of the recording, at best and at worst: with large experts
MindSpeed has measured a loss."""
_BASIS = "a grouped product at about the rates of the best products of this dump"
_SMALL = (
    "Add", "Cast", "ConcatD", "Equal", "GatherElements", "GatherV2", "GatherV3", "Gelu", "GeluV2",
    "Index", "IndexPutV2", "InplaceIndexAdd", "InplaceIndexAddWithSorted",
    "MaskedSelect", "Mul", "Muls", "NonZero", "Relu",
    "ScatterAddWithSorted", "ScatterElementsV2", "Silu", "Slice", "StridedSlice", "StridedSliceD",
    "SwiGlu", "Swish", "TensorMove", "Transpose", "ViewCopy",
)  # fmt: skip


def _are_experts(found: Occurrences) -> Mask:
    """Tell where the weights of a sequence are alike and the numbers of rows are not."""
    cells = np.column_stack(
        [found.part(n)["input_shapes"].astype(str).to_numpy() for n in range(_IN_A_ROW)]
    )
    return np.array([_alike_but_for_rows([shapes(c)[:2] for c in row]) for row in cells], np.bool_)


def _alike_but_for_rows(read: list[tuple[tuple[int, ...], ...]]) -> bool:
    if not all(len(pair) == _AXES and all(len(s) == _AXES for s in pair) for pair in read):
        return False
    weights = {tuple(sorted(weight)) for _, weight in read}
    rows = {x[0] for x, _ in read}
    # The depth is that of the weights: products of a backward pass have the rows there.
    return len(weights) == 1 and len(rows) > 1 and all(x[1] in weight for x, weight in read)


_WANTED = Fusable(
    parts=(MATMUL,) * _IN_A_ROW,
    saved=tuple(range(1, _IN_A_ROW)),
    operator="a grouped product",
    basis="at most three of four products in a row; few large experts gain nothing",
    between=_SMALL,
    links=_are_experts,
)


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all experts together, with what a grouped product would take."""
    for seen in fusable(recording, _WANTED):
        own = recording.kernels.loc[Labels(seen.kernels).array]
        count = _count_loops(own, recording)
        needed = quickest_products_ns(own, recording, count)
        if not needed:
            yield seen
            continue
        now = int(own["duration_ns"].sum())
        least, most = (round(share * needed) for share in _PACE)
        low, high = (max(0, per_step(now - ns, recording)) for ns in (most, least))
        yield replace(seen, instead=(count, least, most), saving_ns=(low, high), basis=_BASIS)


def _count_loops(own: pd.DataFrame, recording: Recording) -> int:
    """Return how many loops they are: between the products of one nothing but small kernels run."""
    at = np.sort(recording.kernels.index.get_indexer(own.index))
    large = ~recording.kernels["type"].isin(_SMALL).to_numpy(bool)
    large &= ~recording.kernels["communication"].to_numpy(bool)
    large[at] = False
    passed = np.cumsum(large)[at]
    weights = np.unique(own["input_shapes"].astype(str).str.split(";").str[-1], return_inverse=True)
    new = (np.diff(passed) > 0) | (np.diff(weights[1]) != 0)
    return 1 + int(new.sum())


RULE = Diagnostic(
    id="NPU126",
    name="expert-matmul-loop",
    summary="the products of the experts run one by one",
    advice=(
        "training: npu_gmm of mindspeed.ops.gmm (--moe-grouped-gemm); inference: "
        "torch_npu.npu_grouped_matmul([x], [weight], group_list=..., split_item=3, group_type=0)"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1; chip A2 A3",
)
