"""Torch operators of a db export, their call stacks and the kernels they are connected to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.profiling_parsers.call_stack import parse_call_stack
from npufix.profiling_parsers.db_tables import NONE, positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.db_tables import Database, Texts
    from npufix.profiling_parsers.profile import CallSite

    Integers = NDArray[np.int64]

HOST, STACKS, CONNECTIONS = "PYTORCH_API", "PYTORCH_CALLCHAINS", "CONNECTION_IDS"
_HOST = {
    "start_ns": ("startNs",),
    "end_ns": ("endNs",),
    "thread": ("globalTid",),
    "connection": ("connectionId",),
    "name": ("name",),
    "sequence": ("sequenceNumber",),
    "input_dims": ("inputShapes",),
    "input_types": ("inputDtypes",),
    "stack": ("callchainId",),
}
_STACKS = {"id": ("id",), "frame": ("stack",), "depth": ("stackDepth",)}
_CONNECTIONS = {"id": ("id",), "connection": ("connectionId",)}
_ONLY_OPERATORS = "WHERE CAST(type AS INTEGER) = 50001"
_LATEST_NS = 1 << 62
_THREAD_BITS = 32
_LETTER = re.compile(r"[A-Za-z]")


@dataclass(frozen=True)
class HostOperators:
    """``frame`` in start order, with the columns that ``attribution`` works on."""

    frame: pd.DataFrame
    connection: Integers
    """What leads from the operator, through CONNECTION_IDS, to its kernels."""
    stacks: tuple[tuple[CallSite, ...], ...]
    malformed: int

    def start_of(self, rows: Integers) -> Integers:
        """Return when the operators at ``rows`` started, -1 where the row is -1."""
        return np.append(self.frame["start_ns"].to_numpy(), -1)[rows]


def read_host_operators(database: Database, texts: Texts) -> HostOperators:
    """Read the operators (type 50001), not the queue and the Python functions beside them."""
    kind = {"type": ("type",)}
    rows = database.integers(
        HOST, {**_HOST, **kind}, required=("start_ns", "end_ns", "type"), where=_ONLY_OPERATORS
    )
    usable = rows["start_ns"].between(1, _LATEST_NS)
    rows = rows[usable].sort_values("start_ns", kind="stable", ignore_index=True)
    stacks, chains, numbers = _read_stacks(database, texts)
    shapes = texts.category(rows["input_dims"].to_numpy(), _one_line)
    types = texts.category(rows["input_types"].to_numpy(), _one_line)
    if any(_LETTER.search(text) for text in shapes.categories):
        # torch_npu writes the shapes into the column of the types and the other way round.
        shapes, types = types, shapes
    thread, start = rows["thread"].to_numpy(), rows["start_ns"].to_numpy()
    at = positions(rows["stack"].to_numpy(), chains)
    return HostOperators(
        frame=pd.DataFrame(
            {
                "name": texts.category(rows["name"].to_numpy(), _one_line),
                "pid": thread >> _THREAD_BITS,
                "tid": thread & ((1 << _THREAD_BITS) - 1),
                "start_ns": start,
                "duration_ns": (rows["end_ns"].to_numpy().clip(0, _LATEST_NS) - start).clip(min=0),
                "sequence": rows["sequence"].to_numpy(),
                "input_dims": shapes,
                "input_types": types,
                "stack": np.append(numbers, -1)[at],
            }
        ),
        connection=rows["connection"].to_numpy(),
        stacks=stacks,
        malformed=int(np.count_nonzero(~usable)),
    )


def launching_operators(
    database: Database, operators: HostOperators, connection: Integers
) -> Integers:
    """Return the row of the operator that each kernel is connected to, -1 if unknown.

    A connection leads from several operators only between forward and backward; the innermost,
    which is the shortest, counts.
    """
    links = database.integers(CONNECTIONS, _CONNECTIONS, required=("id", "connection"))
    hosts = pd.DataFrame(
        {
            "id": operators.connection,
            "operator": np.arange(len(operators.connection)),
            "duration_ns": operators.frame["duration_ns"],
        }
    )
    joined = (
        links.merge(hosts[hosts["id"] != NONE], on="id")
        .sort_values("duration_ns", kind="stable")
        .drop_duplicates("connection")
    )
    at = positions(connection, joined["connection"].to_numpy(np.int64))
    return np.append(joined["operator"].to_numpy(np.int64), -1)[at]


def _read_stacks(
    database: Database, texts: Texts
) -> tuple[tuple[tuple[CallSite, ...], ...], Integers, Integers]:
    """Return the distinct stacks, the ids of the call chains, and the stack of each (-1: none)."""
    rows = database.integers(STACKS, _STACKS, required=("id", "frame", "depth"))
    rows = rows.sort_values(["id", "depth"], kind="stable")
    frames = rows["frame"].to_numpy()
    sites: dict[CallSite, CallSite] = {}
    parsed = {
        frame: tuple(sites.setdefault(site, site) for site in parse_call_stack(texts[frame]))
        for frame in np.unique(frames).tolist()
    }
    chains, starts = np.unique(rows["id"].to_numpy(), return_index=True)
    stacks: dict[tuple[CallSite, ...], int] = {}
    numbers = np.full(len(chains), -1, np.int64)
    bounds = np.append(starts, len(frames)).tolist()
    listed = frames.tolist()
    for index in range(len(chains)):
        own = listed[bounds[index] : bounds[index + 1]]
        stack = tuple(chain.from_iterable(parsed[frame] for frame in own))
        if stack:
            numbers[index] = stacks.setdefault(stack, len(stacks))
    return tuple(stacks), chains, numbers


def _one_line(text: str) -> str:
    return text.replace("\r", "").replace("\n", "")
