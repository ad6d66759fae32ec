"""Query, key and value come from three products of one input.

What: three matrix products in a row that read the same input, in one function.

Why it is slow on the NPU: the input is read three times, and the products of key and value are
narrow with grouped queries: they do not fill the cube. One product with the weights side by side
reads the input once.

Evidence: three MatMul kernels in a row at one function, whose first inputs have one shape and whose
second inputs have other shapes than the first; their time against one product of the same size at
the rate of the widest of the three.

Use instead: one ``nn.Linear(hidden, q + k + v)`` whose result is split
(``q, k, v = qkv(x).split(sizes, -1)``), with the three weights concatenated once, when the
checkpoint is loaded.

Safety: advice; equal up to rounding, but names in checkpoints, tensor parallel plans and adapters
(LoRA) change.

References: torch_npu optimisation points of the Ascend ModelZoo (merged projections).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.fusable import quickest_products_ns
from npufix.rules.shared.recording.observing import is_named, per_step, share
from npufix.rules.shared.recording.recorded_cells import per_row
from npufix.rules.shared.recording.recorded_shapes import elements, shapes
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.sequences import Occurrences

LEAST_SHARE = 0.01
_MATMUL = r"MatMul(V\d|Common)?"
_IN_A_ROW = (_MATMUL,) * 3
_OF_GRADIENT = 2
"""Products of the gradient of one."""
_BETWEEN = ("Add", "TransData", "TensorMove")


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all triples together."""
    found = find(recording, _IN_A_ROW, between=_BETWEEN, within="function")
    if not found.count:
        return
    found = found.where(_same_input(found))
    if not found.count or share(found.cost_ns, recording) < LEAST_SHARE:
        return
    spent = int(found.durations.sum())
    quickest = quickest_products_ns(found.kernels, recording, found.count)
    saved = max(_estimate_saved_ns(found), spent - quickest if quickest else 0.0)
    gradients = _gradients(found)
    back = int(gradients["duration_ns"].sum())
    yield Observation(
        what=(
            f"{format_count(found.per_step, 'time')} per step three matrix products read the same "
            f"input and take {milliseconds(found.cost_ns)} "
            f"({percent(share(found.cost_ns, recording))} of the step)"
        ),
        evidence=(("shapes", str(found.part(0)["input_shapes"].iloc[0])),),
        cost_ns=found.cost_ns,
        saving_ns=(0, per_step(saved, recording)),
        basis="at most what narrow products lose against the rate of the best",
        places=found.places(),
        kernels=found.labels | Labels(gradients.index),
        instead=(found.count, round(spent - saved), spent),
        instead_backward=(round(back * (1 - saved / max(1, spent))), back) if back else None,
        instead_launches_backward=_OF_GRADIENT,
    )


def _gradients(found: Occurrences) -> pd.DataFrame:
    """Return the products of the gradients of these products, where those of all are known.

    Each has one for its weight and one for its input; the wide one has two as well.
    """
    kernels = found.recording.kernels
    rows = kernels[is_named(kernels, _MATMUL, "type") & is_named(kernels, "forward", "basis")]
    own: pd.DataFrame = rows[np.isin(_lines(rows), _lines(found.kernels).clip(min=0))]
    return own if len(own) == len(_IN_A_ROW) * _OF_GRADIENT * found.count else own[:0]


def _lines(rows: pd.DataFrame) -> NDArray[np.int64]:
    """Return a number for the line of each kernel, below 0 where none is known."""
    path, line = rows["path"].cat.codes.to_numpy(np.int64), rows["line"].to_numpy(np.int64)
    return np.where(line > 0, (path << 32) + line, -1)


def _same_input(found: Occurrences) -> NDArray[np.bool_]:
    """Tell which products read an input of one shape, that of a token times the hidden size."""
    first = [found.part(number)["input_shapes"].astype(str).to_numpy() for number in range(3)]
    read = [np.array([text.split(";")[0] for text in column], object) for column in first]
    # A product and the two of its gradient are none.
    bases = [(found.part(n)["basis"].astype(str) != "forward").to_numpy(bool) for n in range(3)]
    same: NDArray[np.bool_] = (read[0] == read[1]) & (read[1] == read[2]) & (read[0] != "")
    return same & bases[0] & bases[1] & bases[2]


def _estimate_saved_ns(found: Occurrences) -> float:
    """Return what the slower products of each triple take more than at the rate of the best."""
    written = np.column_stack(
        [per_row(found.part(n), ["output_shapes"], _elements_of) for n in range(3)]
    )
    spent = np.maximum(found.durations, 1)
    rate = (written / spent).max(axis=1)
    known = rate > 0
    best = written[known].sum(axis=1) / rate[known]
    return float((spent[known].sum(axis=1) - best).clip(min=0).sum())


def _elements_of(outputs: str) -> float:
    return elements(shapes(outputs)[0])


RULE = Diagnostic(
    id="NPU241",
    name="separate-projections",
    summary="query, key and value come from three products of one input",
    advice=(
        "q, k, v = qkv(x).split(sizes, -1) with the three weights concatenated once, when the "
        "checkpoint is loaded"
    ),
    check=check,
    table="affinity",
)
