"""From a device task to the operator that launched it.

device task -> call of the runtime with the same correlation id -> operator. The operator is the
one with the call's external id, if it was running then, else the innermost one on the thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.kineto.events import CORES
from npufix.profiling_parsers.kineto.timeline import ThreadTimeline
from npufix.profiling_parsers.tables.columns import find_rows_with, pick
from npufix.profiling_parsers.tables.time_index import number_threads

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.kineto.events import KinetoTrace

    Integers = NDArray[np.int64]
    Booleans = NDArray[np.bool_]

_ROUNDING_NS = 2_000
"""Until torch 2.2 times are whole microseconds, rounded on either side."""
_LONG_CALL_NS = 1_000_000
"""A launch takes some microseconds."""
_ENGINES = ("autograd::engine::", "torch::autograd::", "struct torch::autograd::")
_COLLECTIVE = r"^\w*ccl:"


@dataclass(frozen=True)
class KinetoLaunches:
    """Per device task; -1 where unknown.

    ``operator`` is the innermost row of ``operators`` that was running, ``named`` the innermost
    that an engineer knows by its name (``aten::mul``), ``collective`` the row of ``annotations``
    (``nccl:all_reduce``) around the launch.
    """

    operator: Integers
    named: Integers
    collective: Integers
    launch_ns: Integers


def find_launches(trace: KinetoTrace) -> KinetoLaunches:
    """Find what launched each row of ``trace.device``."""
    operators, annotations = trace.operators, trace.annotations
    of_call, of_operator, of_annotation = number_threads(trace.runtime, operators, annotations)
    calls = _calls(trace.device["correlation"], trace.runtime["correlation"])
    launched = pick(trace.runtime["start_ns"].to_numpy(), calls)
    thread = pick(of_call, calls)
    everything = np.ones(len(operators), np.bool_)
    around = _innermost(operators, of_operator, everything, thread, launched)
    stated = _find_stated(trace, calls, launched)
    operator = np.where(stated >= 0, stated, around)
    known = is_known_by_name(operators)
    # What has no call of the runtime has no thread: it is looked up where its operator starts.
    thread = np.where(thread >= 0, thread, pick(of_operator, operator))
    moment = np.where(calls >= 0, launched, pick(operators["start_ns"].to_numpy(), operator))
    named = _innermost(operators, of_operator, known, thread, moment)
    own = (operator >= 0) & pick(known.astype(np.int64), operator, missing=0).astype(np.bool_)
    is_collective = annotations["name"].astype(str).str.contains(_COLLECTIVE).to_numpy(np.bool_)
    return KinetoLaunches(
        operator=operator,
        named=np.where(own, operator, named),
        collective=_innermost(annotations, of_annotation, is_collective, thread, launched),
        launch_ns=_behind_long_calls(trace, calls, launched),
    )


def _behind_long_calls(trace: KinetoTrace, calls: Integers, launched: Integers) -> Integers:
    """Return when each task was really launched: a call of 6.5 ms compiles or waits first.

    A copy that blocks was launched when its call began, and waited for its turn.
    """
    spent = pick(trace.runtime["duration_ns"].to_numpy(), calls, missing=0)
    begins = trace.device["start_ns"].to_numpy()
    ends = np.maximum(launched, np.minimum(launched + spent, begins))
    is_kernel = trace.device["core"].to_numpy() == CORES.index("GPU")
    return np.where((spent >= _LONG_CALL_NS) & is_kernel, ends, launched)


def is_known_by_name(operators: pd.DataFrame) -> Booleans:
    """Tell operators of a library from nodes of autograd and from what a compiler generated."""
    return find_rows_with(
        operators["name"], lambda name: "::" in name and not name.startswith(_ENGINES)
    )


def _innermost(
    intervals: pd.DataFrame,
    number_threads: Integers,
    wanted: Booleans,
    at: Integers,
    moments: Integers,
) -> Integers:
    """Return the innermost of the wanted intervals on thread ``at`` at each moment."""
    rows = np.flatnonzero(wanted)
    timeline = ThreadTimeline(
        number_threads[rows],
        intervals["start_ns"].to_numpy()[rows],
        intervals["duration_ns"].to_numpy()[rows],
    )
    found = pick(rows, timeline.at(at.clip(min=0), moments))
    return np.where(at >= 0, found, -1)


def _calls(wanted: pd.Series[int], known: pd.Series[int]) -> Integers:
    """Return the first row of ``known`` that equals each of ``wanted``; 0 and below are no ids."""
    first = known[known > 0].drop_duplicates()
    found = pd.Index(first).get_indexer(pd.Index(wanted))
    return pick(first.index.to_numpy(np.int64), np.asarray(found, np.int64))


def _find_stated(trace: KinetoTrace, calls: Integers, launched: Integers) -> Integers:
    """Return the operator that the external id names, -1 if it was not running at the launch.

    Some versions write the correlation id there: then it names another operator, or none.
    """
    device, operators = trace.device, trace.operators
    external = pick(trace.runtime["external"].to_numpy(), calls)
    external = np.where(external > 0, external, device["external"])
    is_correlation = external == device["correlation"].to_numpy()
    if 2 * np.count_nonzero(is_correlation) > len(device):
        return np.full(len(device), -1, np.int64)
    stated = _calls(pd.Series(external), operators["external"])
    starts = operators["start_ns"].to_numpy()
    ends = starts + operators["duration_ns"].to_numpy()
    start, end = pick(starts, stated, missing=0), pick(ends, stated, missing=0)
    running = (start - _ROUNDING_NS <= launched) & (launched <= end + _ROUNDING_NS)
    unlaunched = (calls < 0) & (start <= device["start_ns"].to_numpy())
    return np.where(np.where(calls >= 0, running, unlaunched), stated, -1)
