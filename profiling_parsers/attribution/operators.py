"""From the operator that launched a kernel to the line and the module that called the operator.

The stack is that of the operator or of the nearest operator around it that has one. Operators of
the autograd thread have none: there the ``Sequence number`` of the operator, or of the nearest
around it, leads to the forward operator with the same number. Where no operator has a stack, the
Python functions around the operator are its stack.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from npufix.profiling_parsers.attribution.module_hierarchy import find_hierarchies
from npufix.profiling_parsers.attribution.nesting import find_enclosing, find_nearest
from npufix.profiling_parsers.attribution.python_calls import Surroundings, find_surroundings
from npufix.profiling_parsers.tables.columns import category, find_rows_with, pick
from npufix.profiling_parsers.tables.time_index import TimeIndex

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.profile import CallSite

    Integers = NDArray[np.int64]
    Rows = NDArray[np.int32]
    Booleans = NDArray[np.bool_]
    Stacks = tuple[tuple[CallSite, ...], ...]

_HOST_OPS = ["name", "start_ns", "duration_ns", "sequence", "input_dims", "input_types"]
_OF_KERNELS = ("host_op", "stack", "module", "basis", "node")
_BASES = ["", "call-stack", "forward", "function", "forward-function"]
_CALL_STACK, _FORWARD, _FUNCTION, _FORWARD_FUNCTION = 1, 2, 3, 4
_ENGINE = "autograd::engine::evaluate_function"


@dataclass(frozen=True)
class Attribution:
    """What the host recorded about the kernels; columns as in ``Profile``."""

    host_ops: pd.DataFrame
    stacks: tuple[tuple[CallSite, ...], ...]
    modules: tuple[str, ...]
    host_op: Rows
    stack: Rows
    module: Rows
    basis: pd.Categorical[str]
    node: Rows
    launch_ns: Integers
    """Start of the operator that launched it, -1 if unknown."""
    shared_clock: bool = True
    """False if no kernel starts when an event of its name does."""
    offset_ns: int = 0
    """What was added to the times of the trace, if these count from its own start."""

    def columns(self) -> dict[str, Any]:
        """Return the columns of ``Profile.kernels`` that say who asked for each kernel."""
        return {name: getattr(self, name) for name in _OF_KERNELS}


@dataclass(frozen=True)
class _Found:
    """Per operator: a position that is -1 if there is none, and whether it says where it ran.

    What also holds for the autograd engine around the operator (``loss.backward()``) says only
    who started the engine.
    """

    at: Rows
    own: Booleans

    def here(self) -> Rows:
        """Return what is known of each operator itself."""
        return np.where(self.own, self.at, np.int32(-1))

    def of(self, rows: Rows) -> Rows:
        """Return what is known of the forward operators at ``rows``."""
        return pick(self.here(), rows)


def attribute_launches(
    operators: pd.DataFrame,
    stacks: Stacks,
    launching: Rows,
    calls: pd.DataFrame | None = None,
) -> Attribution:
    """Find operator, stack and module of each kernel from the operator that launched it.

    ``operators`` has the columns of ``Trace.operators``, in start order; its ``stack`` is an
    index into ``stacks``, its ``module`` may be missing. ``launching`` is a row of it per
    kernel, -1 where unknown. ``calls`` are the Python functions recorded on the host: ``name``
    (category), ``pid``, ``tid``, ``start_ns``, ``duration_ns``.
    """
    parents = find_enclosing(operators)
    host_op = pick(_torch_operators(operators, parents), launching)
    around = _no_surroundings(operators) if calls is None else find_surroundings(operators, calls)
    stacks, functions = _join(stacks, around)
    engine = _engines(operators, parents)
    recorded = operators["stack"].to_numpy().astype(np.int32, copy=False)
    own = _locate(find_nearest(recorded, parents), engine)
    function = _locate(functions, engine)
    module = _locate(around.module, engine)
    forward = find_nearest(_forward_rows(operators, own.own | function.own | module.own), parents)
    stack, basis = _best(own, function, forward)
    module_of, modules = _with_hierarchies(
        np.where(module.own, module.at, module.of(forward)), around.modules, operators, parents
    )
    return Attribution(
        host_ops=_host_ops(operators, own, function),
        stacks=stacks,
        modules=modules,
        host_op=host_op,
        stack=pick(stack, launching),
        module=pick(module_of, launching),
        basis=category(pick(basis, launching, missing=0), _BASES),
        node=_nodes(operators, parents, launching),
        launch_ns=pick(operators["start_ns"].to_numpy(), launching),
    )


def _no_surroundings(operators: pd.DataFrame) -> Surroundings:
    nothing = np.full(len(operators), -1, np.int32)
    return Surroundings(stack=nothing, stacks=(), module=nothing, modules=())


def _join(stacks: Stacks, around: Surroundings) -> tuple[Stacks, Rows]:
    """Put the stacks made of functions behind the recorded ones; return all, and those there."""
    numbers = {stack: number for number, stack in enumerate(stacks)}
    moved = [numbers.setdefault(stack, len(numbers)) for stack in around.stacks]
    return tuple(numbers), pick(np.array(moved, np.int32), around.stack)


def _with_hierarchies(
    module: Rows, modules: tuple[str, ...], operators: pd.DataFrame, parents: Rows
) -> tuple[Rows, tuple[str, ...]]:
    """Fill the module of operators that have none from what is written at or around them."""
    if "module" not in operators:
        return module, modules
    own, modules = find_hierarchies(operators, modules)
    return np.where(module >= 0, module, find_nearest(own, parents)), modules


def _engines(operators: pd.DataFrame, parents: Rows) -> Rows:
    """Return the operator with which autograd runs a node around each operator, -1 if none."""
    is_engine = find_rows_with(operators["name"], lambda name: name.startswith(_ENGINE))
    return find_nearest(_rows_where(is_engine), parents)


def _rows_where(wanted: Booleans) -> Rows:
    """Return for each row its number where it is wanted, else -1."""
    return np.where(wanted, np.arange(len(wanted), dtype=np.int32), np.int32(-1))


def _locate(found: Rows, engine: Rows) -> _Found:
    return _Found(found, own=(found >= 0) & (found != pick(found, engine)))


def _best(own: _Found, function: _Found, forward: Rows) -> tuple[Rows, NDArray[np.int8]]:
    """Return stack and basis (code) of each operator: the first that is known of these."""
    choices = (
        (_CALL_STACK, own.here),
        (_FORWARD, lambda: own.of(forward)),
        (_FUNCTION, function.here),
        (_FORWARD_FUNCTION, lambda: function.of(forward)),
        (_CALL_STACK, lambda: own.at),
        (_FUNCTION, lambda: function.at),
    )
    stack, basis = np.full(len(forward), -1, np.int32), np.zeros(len(forward), np.int8)
    for code, choose in choices:
        choice = choose()
        free = (stack < 0) & (choice >= 0)
        stack[free], basis[free] = choice[free], code
    return stack, basis


def _host_ops(operators: pd.DataFrame, own: _Found, function: _Found) -> pd.DataFrame:
    """Return ``Profile.host_ops``, which shares what it can with ``operators``."""
    basis = np.where(function.at >= 0, np.int8(_FUNCTION), np.int8(0))
    basis[own.at >= 0] = _CALL_STACK
    columns = {name: operators[name] for name in _HOST_OPS}
    columns["sequence"] = columns["sequence"].clip(lower=-1)  # what is no number has one below
    stack = np.where(own.at >= 0, own.at, function.at)
    return pd.DataFrame({**columns, "stack": stack, "basis": category(basis, _BASES)}, copy=False)


def _torch_operators(operators: pd.DataFrame, parents: Rows) -> Rows:
    """Return the operator itself or, for a bare launch (``aclnnMul``), the operator around it.

    Only operators of a library (``aten::mul``) record the shapes of their arguments.
    """
    found = find_nearest(
        _rows_where(find_rows_with(operators["name"], lambda name: "::" in name)), parents
    )
    bare = np.flatnonzero(found < 0)
    found[bare] = bare
    return found


def _forward_rows(operators: pd.DataFrame, located: Booleans) -> Rows:
    """Return the forward operator with the same sequence number as one without a place, or -1.

    Operators that create no autograd node share the number of the next one that does, so the
    last one is the forward operator.
    """
    sequence, start = operators["sequence"].to_numpy(), operators["start_ns"].to_numpy()
    offered = np.flatnonzero(located & (sequence >= 0))
    wanted = np.flatnonzero(~located & (sequence >= 0))
    index = TimeIndex(sequence[offered], start[offered])
    forward = np.full(len(operators), -1, np.int32)
    forward[wanted] = pick(offered, index.last(sequence[wanted], start[wanted]))
    return forward


def _nodes(operators: pd.DataFrame, parents: Rows, launching: Rows) -> Rows:
    """Return the node of autograd of each kernel: n of the forward call, -2 - n of its gradient.

    Numbers count calls from the start of a thread anew; the last call before has the node. A call
    that makes none has the number of the next one that does, and is not that. By the clock what
    runs a node may reach into the next one: the number says to which an operator belongs. What
    runs it has its number, recorded (Kineto) or not, and adds up gradients behind it.
    """
    sequence, start = operators["sequence"].to_numpy().copy(), operators["start_ns"].to_numpy()
    ends = start + operators["duration_ns"].to_numpy()
    of_engine = find_rows_with(operators["name"], lambda name: name.startswith(_ENGINE))
    inner = np.flatnonzero((sequence >= 0) & (parents >= 0))
    inner = inner[of_engine[parents[inner]] & (sequence[parents[inner]] < 0)]
    sequence[parents[inner]] = sequence[inner]
    numbered = np.flatnonzero(sequence >= 0)
    engines = numbered[of_engine[numbered]]
    index = TimeIndex(sequence[engines], start[engines])
    run = np.full(len(operators), -1, np.int64)
    run[numbered] = pick(engines, index.last(sequence[numbered], start[numbered]))
    run[start >= pick(ends, run)] = -1
    offered = numbered[run[numbered] < 0]
    index = TimeIndex(sequence[offered], start[offered])
    around = pick(find_nearest(_rows_where(sequence >= 0), parents), launching)
    run = pick(run, around)
    until = np.where(run >= 0, pick(start, run), pick(ends, around))
    found = pick(offered, index.last(pick(sequence, around), until))
    found[around < 0] = -1
    return np.where((run >= 0) & (found >= 0), -2 - found, found).astype(np.int32)
