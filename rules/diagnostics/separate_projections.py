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
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.observing import per_step, share
from npufix.rules.shared.recording.recorded_cells import per_row
from npufix.rules.shared.recording.recorded_shapes import elements, shapes
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.sequences import Occurrences

LEAST_SHARE = 0.01
_MATMUL = r"MatMul(V\d|Common)?"
_BETWEEN = ("Add", "TransData", "TensorMove")


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all triples together."""
    found = find(recording, (_MATMUL,) * 3, between=_BETWEEN, within="function")
    if not found.count:
        return
    found = found.where(_same_input(found))
    if not found.count or share(found.cost_ns, recording) < LEAST_SHARE:
        return
    saved = _estimate_saved_ns(found)
    yield Observation(
        what=(
            f"{format_count(found.per_step, 'time')} per step three matrix products read the same "
            f"input and take {milliseconds(found.cost_ns)} "
            f"({percent(share(found.cost_ns, recording))} of the step)"
        ),
        evidence=(("shapes", str(found.part(0)["input_shapes"].iloc[0])),),
        cost_ns=found.cost_ns,
        saving_ns=(0, per_step(saved, recording)),
        basis="at most what narrow products lose against the rate of the widest of each three",
        places=found.places(),
        kernels=found.labels,
    )


def _same_input(found: Occurrences) -> NDArray[np.bool_]:
    """Tell which products read an input of one shape, that of a token times the hidden size."""
    first = [found.part(number)["input_shapes"].astype(str).to_numpy() for number in range(3)]
    read = [np.array([text.split(";")[0] for text in column], object) for column in first]
    has_path = (found.part(0)["basis"].astype(str) != "forward").to_numpy(bool)
    same: NDArray[np.bool_] = (read[0] == read[1]) & (read[1] == read[2]) & (read[0] != "")
    return same & has_path


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
