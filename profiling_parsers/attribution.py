"""From a kernel to the operator that asked for it and to the line that called the operator.

kernel -> device event (name and start) -> end of its flow -> start of the flow -> operator at
that place. The stack is that of the operator or of the nearest operator around it that has one.
Operators of the autograd thread have none: there the ``Sequence number`` of the operator, or of
the nearest around it, leads to the forward operator with the same number.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.call_stack import intern_stacks
from npufix.profiling_parsers.csv_columns import category

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.profile import CallSite
    from npufix.profiling_parsers.trace_view import Trace

    Integers = NDArray[np.int64]

_HOST_OPS = ["name", "start_ns", "duration_ns", "sequence", "input_dims", "input_types", "stack"]
_PLACE = ["pid", "tid", "start_ns"]
_BASES = ["", "call-stack", "forward"]
_CALL_STACK, _FORWARD = 1, 2
_EARLIEST_EPOCH_NS = 10**18
"""2001: a trace whose times are smaller counts from its own start."""


@dataclass(frozen=True)
class Attribution:
    """What the trace says about the kernels; columns as in ``Profile``."""

    host_ops: pd.DataFrame
    stacks: tuple[tuple[CallSite, ...], ...]
    host_op: Integers
    stack: Integers
    basis: pd.Categorical[str]
    shared_clock: bool
    """False if no kernel starts when an event of its name does."""


def attribute(kernels: pd.DataFrame, trace: Trace) -> Attribution:
    """Find operator and stack of each kernel.

    ``trace`` was read with the codes of the category ``kernels["name"]``.
    """
    starts = pd.DataFrame(
        {"kernel": kernels["name"].cat.codes.to_numpy(), "start_ns": kernels["start_ns"]}
    )
    offset = _clock_offset(starts, trace.device)
    starts["start_ns"] -= offset or 0
    operators = trace.operators.sort_values("start_ns", kind="stable", ignore_index=True)
    stacks, numbers = intern_stacks(trace.stacks)
    operators["stack"] = numbers[operators["stack"]]
    launching = _launching_operators(starts, trace, operators)
    found = attribute_launches(operators, stacks, launching)
    return replace(
        found,
        host_ops=found.host_ops.assign(start_ns=found.host_ops["start_ns"] + (offset or 0)),
        shared_clock=offset is not None,
    )


def attribute_launches(
    operators: pd.DataFrame, stacks: tuple[tuple[CallSite, ...], ...], launching: Integers
) -> Attribution:
    """Find operator and stack of each kernel from the row of the operator that launched it.

    ``operators`` has the columns of ``Trace.operators``, in start order; its ``stack`` is an
    index into ``stacks``. ``launching`` is -1 where the launch is unknown.
    """
    parents = _enclosing(operators)
    stack, basis = _operator_stacks(operators, parents)
    return Attribution(
        host_ops=operators[_HOST_OPS],
        stacks=stacks,
        host_op=_pick(_torch_operators(operators, parents), launching, missing=-1),
        stack=_pick(stack, launching, missing=-1),
        basis=category(_pick(basis, launching, missing=0), _BASES),
        shared_clock=True,
    )


def _pick(values: Integers, rows: Integers, missing: int) -> Integers:
    """Return ``values[rows]``, ``missing`` where the row is -1."""
    picked = np.full(len(rows), missing, np.int64)
    known = rows >= 0
    picked[known] = values[rows[known]]
    return picked


def _clock_offset(kernels: pd.DataFrame, device: pd.DataFrame) -> int | None:
    """Return what to add to a time of the trace to get a time of the kernels, None if unknown.

    It is 0 but for traces that count from their own start; there the n-th event of a name is
    the n-th kernel of that name, and the difference that most of them agree on is the offset.
    """
    both = ["kernel", "start_ns"]
    if device.empty or len(kernels[both].merge(device[both].drop_duplicates(), on=both)):
        return 0
    if device["start_ns"].max() >= _EARLIEST_EPOCH_NS:
        return None
    pairs = [
        frame.sort_values("start_ns").assign(nth=lambda rows: rows.groupby("kernel").cumcount())
        for frame in (kernels[both], device[both])
    ]
    paired = pairs[0].merge(pairs[1], on=["kernel", "nth"])
    offsets = (paired["start_ns_x"] - paired["start_ns_y"]).value_counts()
    if offsets.empty or 2 * offsets.iloc[0] < len(paired):
        return None
    return int(offsets.index[0])


def _launching_operators(kernels: pd.DataFrame, trace: Trace, operators: pd.DataFrame) -> Integers:
    """Return the row of ``operators`` at which the flow to each kernel starts, -1 if unknown.

    Inner joins only: an outer join turns int64 into float64 and loses the nanoseconds.
    """
    # Of several operators that start at one time, the shortest is the innermost.
    hosts = operators.assign(operator=np.arange(len(operators))).sort_values("duration_ns")
    links = (
        kernels.assign(row=np.arange(len(kernels)))
        .merge(_first(trace.device, ["kernel", "start_ns"]), on=["kernel", "start_ns"])
        .merge(_first(trace.flow_ends, _PLACE), on=_PLACE)[["row", "flow"]]
        .merge(_first(trace.flow_starts, ["flow"]), on="flow")
        .merge(_first(hosts, _PLACE)[[*_PLACE, "operator"]], on=_PLACE)
    )
    launching = np.full(len(kernels), -1, np.int64)
    launching[links["row"]] = links["operator"]
    return launching


def _first(frame: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    return frame.drop_duplicates(keys)


def _enclosing(operators: pd.DataFrame) -> Integers:
    """Return the row of the operator directly around each one on its thread, -1 if none."""
    parents = np.full(len(operators), -1, np.int64)
    starts = operators["start_ns"].to_numpy()
    # An operator of no length still is inside the one that starts with it.
    ends = starts + operators["duration_ns"].to_numpy().clip(min=1)
    for rows in map(np.asarray, operators.groupby(["pid", "tid"]).indices.values()):
        order = rows[np.lexsort((-ends[rows], starts[rows]))]
        inside = _enclosing_on_thread(starts[order], ends[order])
        parents[order] = _pick(order, inside, missing=-1)
    return parents


def _enclosing_on_thread(starts: Integers, ends: Integers) -> Integers:
    """Return the position of the interval around each one; they nest and are in start order.

    The depth of an interval is the number of those that started and have not ended, and the
    one around it is the last before it that is one level less deep.
    """
    positions = np.arange(len(starts))
    depths = positions - np.searchsorted(np.sort(ends), starts, side="right")
    parents = np.full(len(starts), -1, np.int64)
    for depth in range(1, int(depths.max()) + 1):
        outer, inner = positions[depths == depth - 1], positions[depths == depth]
        before = np.searchsorted(outer, inner) - 1
        parents[inner] = np.where(before >= 0, outer[before], -1) if len(outer) else -1
    around = parents >= 0
    around[around] = ends[parents[around]] > starts[around]
    return np.where(around, parents, -1)


def _nearest(found: Integers, parents: Integers) -> Integers:
    """Return ``found`` of the operator or of the nearest around it where it is not -1."""
    nearest, around = found.copy(), parents.copy()
    while (unknown := (nearest < 0) & (around >= 0)).any():
        nearest[unknown] = found[around[unknown]]
        around[unknown] = parents[around[unknown]]
    return nearest


def _torch_operators(operators: pd.DataFrame, parents: Integers) -> Integers:
    """Return the operator itself or, for a bare launch (``aclnnMul``), the operator around it.

    Only operators of a library (``aten::mul``) record the shapes of their arguments.
    """
    rows = np.arange(len(operators))
    names = operators["name"].cat
    of_library = np.array(["::" in name for name in names.categories], np.bool_)[names.codes]
    found = _nearest(np.where(of_library, rows, -1), parents)
    return np.where(found >= 0, found, rows)


def _operator_stacks(operators: pd.DataFrame, parents: Integers) -> tuple[Integers, Integers]:
    """Return stack and basis (code) of each operator."""
    own = _nearest(operators["stack"].to_numpy(), parents)
    forward = _nearest(_forward_stacks(operators, own), parents)
    basis = np.where(own >= 0, _CALL_STACK, np.where(forward >= 0, _FORWARD, 0))
    return np.where(own >= 0, own, forward), basis


def _forward_stacks(operators: pd.DataFrame, stacks: Integers) -> Integers:
    """Return the stack of the forward operator with the same sequence number, -1 if none.

    Operators that create no autograd node share the number of the next one that does, so the
    last one is the forward operator.
    """
    forward = np.full(len(operators), -1, np.int64)
    numbered = operators[["sequence", "start_ns"]].assign(
        row=np.arange(len(operators)), forward_stack=stacks
    )
    numbered = numbered[numbered["sequence"] >= 0]
    with_stack = numbered["forward_stack"] >= 0
    joined = pd.merge_asof(
        numbered.loc[~with_stack, ["sequence", "start_ns", "row"]],
        numbered.loc[with_stack, ["sequence", "start_ns", "forward_stack"]],
        on="start_ns",
        by="sequence",
    ).dropna()
    forward[joined["row"]] = joined["forward_stack"]
    return forward
