"""PYTORCH_CALLCHAINS, the call stacks of a db export: a row per frame, innermost at depth 0."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from npufix.profiling_parsers.attribution.call_stack import parse_call_stack
from npufix.profiling_parsers.database.query import Query
from npufix.profiling_parsers.database.texts import Lookup
from npufix.profiling_parsers.tables.columns import pick

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.database.texts import Texts
    from npufix.profiling_parsers.profile import CallSite

    Integers = NDArray[np.int64]

STACKS = "PYTORCH_CALLCHAINS"
_STACKS = Query(
    STACKS,
    {"id": ("id",), "frame": ("stack",), "depth": ("stackDepth",)},
    required=("id", "frame", "depth"),
)


@dataclass(frozen=True)
class CallChains:
    """The distinct stacks, and which of them each call chain is."""

    stacks: tuple[tuple[CallSite, ...], ...]
    ids: Integers
    numbers: NDArray[np.int32]
    """Index into ``stacks`` per id, -1 for a chain without frames."""

    def of(self, ids: Integers) -> NDArray[np.int32]:
        """Return the stack of each call chain, -1 if none."""
        return pick(self.numbers, Lookup(self.ids)(ids))


def read_call_chains(database: Database, texts: Texts) -> CallChains:
    """Read the stacks; a text that is no frame is left out."""
    rows = database.columns(_STACKS)
    order = np.lexsort((rows["depth"], rows["id"]))
    frames = rows["frame"][order]
    sites: dict[CallSite, CallSite] = {}
    parsed = {
        frame: tuple(sites.setdefault(site, site) for site in parse_call_stack(texts[frame]))
        for frame in np.unique(frames).tolist()
    }
    ids, starts = np.unique(rows["id"][order], return_index=True)
    stacks: dict[tuple[CallSite, ...], int] = {}
    numbers = np.full(len(ids), -1, np.int32)
    bounds = np.append(starts, len(frames)).tolist()
    listed = frames.tolist()
    for index in range(len(ids)):
        own = listed[bounds[index] : bounds[index + 1]]
        stack = tuple(chain.from_iterable(parsed[frame] for frame in own))
        if stack:
            numbers[index] = stacks.setdefault(stack, len(stacks))
    return CallChains(tuple(stacks), ids, numbers)
