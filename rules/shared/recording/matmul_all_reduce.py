"""Row-parallel products and what follows their all-reduce, for the two pieces of advice on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Observation
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.collectives import LEAST_SHARE
from npufix.rules.shared.recording.fusable import MATMUL, chain, parts_of, shapes_of, trains
from npufix.rules.shared.recording.matmul_collectives import (
    ALL_REDUCE,
    find_linked,
    group_size,
    neighbours,
)
from npufix.rules.shared.recording.mm_all_reduce_limits import (
    Call,
    Limit,
    Operand,
    Scenario,
    check_limits,
    scenario_of,
)
from npufix.rules.shared.recording.observing import per_step, places, share
from npufix.rules.shared.recording.recorded_cells import dtype_name
from npufix.rules.shared.recording.recorded_shapes import same_elements, shapes
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pandas as pd

    from npufix.rules.diagnostic import Place, Recording
    from npufix.rules.shared.recording.sequences import Occurrences

_FULL = r"QuantBatchMatmul(V\d)?"
_WEIGHTS = r"WeightQuantBatchMatmul(V\d)?"
_PRODUCTS = f"{MATMUL}|{_FULL}|{_WEIGHTS}"
_TAILS = (("Add", "RmsNorm"), ("AddRmsNorm|InplaceAddRmsNorm",))
_PRODUCT, _REDUCTION, _ADDITION, _NORM = 0, 1, 2, -1
_CELLS = ["input_shapes", "input_dtypes", "output_shapes"]
_MOST_PLACES = 10
# In which order the kernels take their tensors; "" is of no interest here.
_QUANT_INPUTS = ("x1", "x2", "dequant_scale", "", "bias")
_WEIGHT_QUANT_INPUTS = ("x1", "x2", "antiquant_scale", "antiquant_offset", "", "", "bias")
_MATMUL_INPUTS = ("x1", "x2", "bias")


@dataclass(frozen=True, eq=False, slots=True)
class Fit:
    """Sequences that the fused operator takes, of one scenario."""

    found: Occurrences
    scenario: Scenario
    limits: tuple[tuple[Limit, bool | None], ...]
    """Those of the most frequent shapes: none is False."""


def find_reduced_products(recording: Recording) -> Occurrences:
    """Return the products whose all-reduce nothing hides, whose result is read afterwards."""
    found = find(recording, (MATMUL, ALL_REDUCE))
    reader = neighbours(found, _REDUCTION, after=True)
    return found.where(find_linked(found, reader, written=_PRODUCT, relation=same_elements))


def list_fits_with_norm(recording: Recording) -> Iterator[Fit]:
    """Yield the sequences up to the norm whose limits nothing recorded breaks, by scenario.

    A run that trains has none: the operator has no backward pass.
    """
    if trains(recording):
        return
    for tail in _TAILS:
        found = find(recording, (_PRODUCTS, ALL_REDUCE, *tail))
        if not found.count:
            continue
        exposed = neighbours(found, _REDUCTION, after=True) == found.rows[:, _ADDITION]
        yield from _fits(found.where(exposed))


def _fits(found: Occurrences) -> Iterator[Fit]:
    if not found.count:
        return
    ranks = group_size(found, _REDUCTION)
    keys = _kinds(found)
    verdicts: dict[int, tuple[Scenario, tuple[tuple[Limit, bool | None], ...]]] = {}
    for key in np.unique(keys).tolist():
        first = int(np.flatnonzero(keys == key)[0])
        call = call_of([found.part(n).iloc[first] for n in range(found.rows.shape[1])], ranks)
        limits = () if call is None else tuple(check_limits(call))
        if call is not None and all(holds is not False for _, holds in limits):
            verdicts[key] = (scenario_of(call), limits)
    for scenario in Scenario:
        own = {key: limits for key, (of, limits) in verdicts.items() if of is scenario}
        if own:
            chosen = found.where(np.isin(keys, list(own)))
            common = max(own, key=lambda key: int((keys == key).sum()))
            yield Fit(chosen, scenario, own[common])


def _kinds(found: Occurrences) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return a number per occurrence that is the same where all shapes and dtypes are."""
    columns = [
        found.part(number)[cell].cat.codes.to_numpy(np.int64)
        for number in range(found.rows.shape[1])
        for cell in _CELLS
    ]
    _, of_row = np.unique(np.column_stack(columns), axis=0, return_inverse=True)
    kinds: np.ndarray[tuple[int], np.dtype[np.int64]] = of_row.ravel()
    return kinds


def call_of(rows: list[pd.Series[str]], ranks: int | None) -> Call | None:
    """Return the operands of a sequence, ``None`` if the dump did not record them."""
    product, norm = rows[_PRODUCT], rows[_NORM]
    given = _product_operands(product)
    added = _operands(rows[_ADDITION])
    gamma = _operands(norm)[-1:]
    if not {"x1", "x2"} <= set(given) or len(added) < 2 or not gamma:  # noqa: PLR2004 - two
        return None
    # Both tensors that are added have the shape of the sum; the residual is the one of three axes.
    residual = max(added[:2], key=lambda operand: len(operand.shape))
    scale = given.get("antiquant_scale")
    per_group = scale is not None and len(scale.shape) > 1 and scale.shape[0] > 1
    return Call(
        x1=given["x1"],
        x2=given["x2"],
        residual=residual,
        gamma=gamma[0],
        bias=given.get("bias"),
        antiquant_scale=scale,
        antiquant_offset=given.get("antiquant_offset"),
        dequant_scale=given.get("dequant_scale"),
        # The size itself is an attribute of the kernel, which no dump records.
        antiquant_group_size=None if per_group else 0,
        ranks=ranks,
    )


def _product_operands(row: pd.Series[str]) -> dict[str, Operand]:
    kind = str(row["type"])
    names: tuple[str, ...] = _MATMUL_INPUTS
    if kind.startswith("QuantBatch"):
        names = _QUANT_INPUTS
    elif kind.startswith("WeightQuant"):
        names = _WEIGHT_QUANT_INPUTS
    given = {
        name: operand
        for name, operand in zip(names, _operands(row), strict=False)
        if name and operand.shape
    }
    written = shapes(str(row["output_shapes"]))[0]
    if "x2" in given and written:
        given["x2"] = _as_read(given["x2"], written[-1])
    return given


def _as_read(weight: Operand, columns: int) -> Operand:
    """Return a weight as (k, n): transposed weights are recorded as they lie in memory."""
    shape = weight.shape
    if shape[-1] == columns or len(shape) != 2 or shape[0] != columns:  # noqa: PLR2004 - matrix
        return weight
    return Operand(shape[::-1], weight.dtype, weight.layout, weight.contiguous, transposed=True)


def _operands(row: pd.Series[str]) -> list[Operand]:
    dtypes = str(row["input_dtypes"]).split(";")
    read = shapes(str(row["input_shapes"]))
    known = [dtype_name(dtypes[i]) if i < len(dtypes) else "" for i in range(len(read))]
    return [Operand(shape, dtype) for shape, dtype in zip(read, known, strict=True)]


def norm_observation(fit: Fit) -> Iterator[Observation]:
    """Yield the observation about sequences up to the norm."""
    found, recording = fit.found, fit.found.recording
    if share(found.cost_ns, recording) < LEAST_SHARE:
        return
    yield Observation(
        what=(
            f"{format_count(found.per_step, chain(found))} per step ({fit.scenario.value}) take "
            f"{milliseconds(found.cost_ns)}, {percent(share(found.cost_ns, recording))} of the "
            "step, one after the other; npu_mm_all_reduce_add_rms_norm does them at once"
        ),
        evidence=(*parts_of(found), *shapes_of(found), *_tell(fit.limits)),
        cost_ns=found.cost_ns,
        saving_ns=(0, _most_saved(found)),
        basis=(
            "at most addition, norm and the shorter one of product and all-reduce, if the operator "
            "overlaps these completely"
        ),
        places=_all_places(found),
        kernels=found.labels,
    )


def _most_saved(found: Occurrences) -> int:
    shorter = found.durations[:, [_PRODUCT, _REDUCTION]].min(axis=1)
    rest = found.durations[:, _ADDITION:].sum(axis=1)
    return per_step(int((shorter + rest).sum()), found.recording)


def _tell(limits: tuple[tuple[Limit, bool | None], ...]) -> Iterator[tuple[str, str]]:
    met = [limit for limit, holds in limits if holds]
    yield "limits of the operator", f"{len(met)} of {len(limits)} are met, none is broken"
    for limit, holds in limits:
        if holds is None:
            yield f"not recorded: {limit.name}", limit.text


def _all_places(found: Occurrences) -> tuple[Place, ...]:
    """Return the lines of all the operations, the most expensive first."""
    parts = range(found.rows.shape[1])
    own = [
        place
        for part in parts
        for place in places(found.part(part), found.durations[:, part], found.recording)
    ]
    best: dict[tuple[str, int], Place] = {}
    for place in own:
        best.setdefault((place.path, place.line), place)
    return tuple(sorted(best.values(), key=lambda place: -place.cost_ns)[:_MOST_PLACES])
