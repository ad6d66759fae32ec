"""The Python functions and the modules around each host operator.

The profiler records a call as an interval on its thread: ``main.py(465): update`` with the line of
the ``def``, ``nn.Module: Conv2d_0``, or ``<built-in function len>``, which is no place in a source.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.attribution.call_stack import parse_frame
from npufix.profiling_parsers.attribution.nesting import find_bounds, find_enclosing, find_nearest
from npufix.profiling_parsers.signals import LONG_CALL_NS
from npufix.profiling_parsers.tables.columns import find_distinct, order_of, pick
from npufix.profiling_parsers.trace.rows import BUILT_IN, MODULE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from npufix.profiling_parsers.profile import CallSite

    Integers = NDArray[np.int64]
    Rows = NDArray[np.int32]

_BLOCK_ROWS = 1 << 20
_INTERVAL = ["pid", "tid", "start_ns", "duration_ns"]


@dataclass(frozen=True)
class Surroundings:
    """What is around each operator; -1 where nothing is."""

    stack: Rows
    stacks: tuple[tuple[CallSite, ...], ...]
    module: Rows
    modules: tuple[str, ...]


def long_functions(calls: pd.DataFrame) -> pd.DataFrame:
    """Return ``Signals.functions``: the calls of functions that may be what a device waits for."""
    names = [str(name) for name in calls["name"].cat.categories]
    is_place = np.array([*(not n.startswith((MODULE, BUILT_IN)) for n in names), False], np.bool_)
    long = is_place[calls["name"].cat.codes] & (calls["duration_ns"] >= LONG_CALL_NS).to_numpy(bool)
    found: pd.DataFrame = calls.loc[long, ["name", "start_ns", "duration_ns"]]
    return found.reset_index(drop=True)


def find_surroundings(operators: pd.DataFrame, calls: pd.DataFrame) -> Surroundings:
    """Find the calls around each operator; ``calls`` as in ``attribute_launches``."""
    calls = calls[_holds_operator(calls, operators)]
    names = calls["name"].cat
    frames = [
        None if name.startswith((MODULE, BUILT_IN)) else parse_frame(name)
        for name in names.categories
    ]
    modules = [name[len(MODULE) :] for name in names.categories]
    is_module = [name.startswith(MODULE) for name in names.categories]
    codes = names.codes.to_numpy().astype(np.int64)
    # An operator and the call around it may start and end together: the call comes first.
    parents = find_enclosing(pd.concat([calls[_INTERVAL], operators[_INTERVAL]], ignore_index=True))
    first = len(calls)
    place, places = _chains(parents, _only(codes, [frame is not None for frame in frames]), first)
    path, paths = _chains(parents, _only(codes, is_module), first)
    return Surroundings(
        stack=place,
        stacks=tuple(
            tuple(frame for code in chain if (frame := frames[code]) is not None)
            for chain in places
        ),
        module=path,
        modules=tuple("/".join(modules[code] for code in reversed(chain)) for chain in paths),
    )


def _holds_operator(calls: pd.DataFrame, operators: pd.DataFrame) -> NDArray[np.bool_]:
    """Say which calls have an operator that starts in them; most have none.

    In blocks: there may be many times more calls than anything else of a trace.
    """
    by_thread = operators.groupby(["pid", "tid"])["start_ns"]
    inside = {thread: np.sort(column.to_numpy()) for thread, column in by_thread}
    holds = np.zeros(len(calls), np.bool_)
    for first in range(0, len(calls), _BLOCK_ROWS):
        block = calls.iloc[first : first + _BLOCK_ROWS]
        starts, ends = find_bounds(block)
        for thread, rows in block.groupby(["pid", "tid"]).indices.items():
            if thread in inside:
                begun, ended = (np.searchsorted(inside[thread], t[rows]) for t in (starts, ends))
                holds[first + np.asarray(rows)] = begun < ended
    return holds


def _only(codes: Integers, wanted: list[bool]) -> Integers:
    """Return the codes of the calls that are wanted and -1 for all others."""
    return np.where(np.array([*wanted, False], np.bool_)[codes], codes, -1)


def _chains(parents: Rows, codes: Integers, first: int) -> tuple[Rows, list[tuple[int, ...]]]:
    """Return the distinct chains of codes around the rows from ``first`` on, innermost first.

    ``codes`` are those of the rows before ``first``, -1 for rows that are no link of a chain.
    """
    links = np.concatenate([codes, np.full(len(parents) - first, -1, np.int64)])
    rows = np.arange(len(links), dtype=np.int32)
    inner = find_nearest(np.where(links >= 0, rows, np.int32(-1)), parents)
    outer = pick(inner, parents)
    nodes, trie = _trie(inner[first:], outer, links)
    used, chain = np.unique(nodes, return_inverse=True)
    offset = int(len(used) > 0 and used[0] < 0)
    chains = (chain - offset).astype(np.int32)
    return chains, [tuple(_upwards(trie, node)) for node in used[offset:].tolist()]


def _trie(rows: Rows, outer: Rows, codes: Integers) -> tuple[Integers, list[tuple[int, int]]]:
    """Give equal chains one number; return that of each row, and (number around, code) of each.

    Level by level from the outermost, so that each level is one look-up for all of its rows.
    """
    nodes = np.full(len(codes), -1, np.int64)
    trie: list[tuple[int, int]] = []
    most = len(codes) and int(codes.max()) + 1
    for level in reversed(_levels(rows, outer)):
        keys = (pick(nodes, outer[level]) + 1) * most + codes[level]
        numbers, distinct = pd.factorize(keys)
        nodes[level] = len(trie) + numbers
        trie += [(int(key) // most - 1, int(key) % most) for key in distinct]
    return pick(nodes, rows), trie


def _levels(rows: Rows, outer: Rows) -> list[NDArray[np.intp]]:
    """Return the rows and all around them, so that those around a row are in a later list."""
    depth = np.zeros(len(outer), np.int64)
    level = find_distinct(rows[rows >= 0])
    reached = 0
    while len(level):
        depth[level] = reached = reached + 1
        level = find_distinct(outer[level])
        level = level[level >= 0]
    touched = np.flatnonzero(depth)
    touched = touched[order_of(depth[touched])]
    return np.split(touched, np.searchsorted(depth[touched], np.arange(2, reached + 1)))


def _upwards(trie: list[tuple[int, int]], node: int) -> Iterator[int]:
    while node >= 0:
        node, code = trie[node]
        yield code
