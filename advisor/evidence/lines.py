"""What the profile says about each line of the user's source."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.advisor.evidence.steady_steps import are_varied, find_cut_off, split_steps
from npufix.advisor.project.user_frames import user_frames
from npufix.profiling_parsers.kineto.names import is_host_copy
from npufix.profiling_parsers.tables.columns import category, find_rows_with
from npufix.rewriters.match.recorded_call import RecordedCall
from npufix.rules.shared.recording.observing import NEXT_BATCH, rows_where
from npufix.rules.shared.recording.recorded_cells import dtypes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from npufix.profiling_parsers.profile import CallSite, Profile
    from npufix.reports.report import LeftOutStep
    from npufix.rewriters.edit.site import Site

    Mask = NDArray[np.bool_]

_NOT_TENSORS = frozenset({"", "None", "Scalar", "ScalarList", "TensorList", "Device", "str"})
# The dtypes of kernels as the profiler names those of operators.
_PROFILER_NAMES = {
    "BF16": "c10::BFloat16", "BOOL": "bool", "DOUBLE": "double", "FLOAT": "float",
    "FLOAT16": "c10::Half", "INT16": "short int", "INT32": "int", "INT64": "long int",
    "INT8": "signed char", "UINT8": "unsigned char",
}  # fmt: skip
_RECOMPUTES = re.compile(
    r"torch/utils/checkpoint\.py:(unpack_hook|recompute_fn|backward)"
    r"|tensor_parallel/random\.py:(backward|recompute)|activation_checkpointing/.*:backward"
)
"""Who runs a forward pass again in the middle of a backward one."""
_FUNCTION_LEVEL = ("function", "forward-function")
_NEXT_BATCH = re.compile(NEXT_BATCH)
_SELECTS = frozenset({"aten::nonzero", "aten::masked_select"})
"""What the host waits for: how many elements a mask selects."""
_STEP_OPERATOR = re.compile(r"ProfilerStep#(\d{1,18})")


@dataclass(frozen=True)
class Evidence:
    """Kernels and operator calls of a profile with the line of the user that asked for them."""

    kernels: pd.DataFrame
    """The kernels and the collectives, with ``path``, ``function``, ``via``, ``level`` (category,
    "" unknown; ``level``: ``line`` or ``function``), ``line`` (int64), ``recomputed`` (bool: asked
    for by a forward pass that the backward one runs again)."""
    computes: Mask
    """Which of them are kernels, not collectives."""
    steady: Mask
    """Which of them averages per step are made of."""
    host_ops: pd.DataFrame
    """The operators of the steady steps, with the same columns."""
    loads: pd.DataFrame
    """The waits for a batch, of all steps, as in ``Profile.host_ops``."""
    copies: pd.DataFrame
    """What the device copies from and to the host in all steps, as in ``Signals.copies``."""
    calls: pd.DataFrame
    """One row per distinct (path, line, name, input_dims, input_types) of the calls whose executing
    line is known, in whatever step: all of them prove. ``count`` is that of the steady steps."""
    split: pd.DataFrame
    """The steady rows of ``Profile.steps``."""
    steps: int
    """Number of steady steps, at least one."""
    left_out: tuple[LeftOutStep, ...]
    outlier_ops: pd.DataFrame
    """As ``host_ops``, of the outliers that are longer than the others."""
    stacks: Sequence[Sequence[CallSite]]
    """Those that ``kernels`` and ``host_ops`` have the numbers of, the innermost frame first."""
    mapped: Mapping[str, str]
    """Recorded path -> path in the source."""

    @property
    def outliers(self) -> dict[int, int]:
        """Return the lengths of the outliers that are longer than the others, by their number."""
        return {
            step.step: step.total_ns
            for step in self.left_out
            if step.step is not None and step.reason == "outlier" and step.ratio > 1
        }

    def recorded(self, path: str) -> dict[int, list[RecordedCall]]:
        """Return the operator calls of a file by line, and the kernels by their Types."""
        found: dict[int, list[RecordedCall]] = {}
        rows = self.calls[self.calls["path"] == path]
        for line, name, dims, types in zip(
            rows["line"], rows["name"], rows["input_dims"], rows["input_types"], strict=True
        ):
            found.setdefault(int(line), []).append(_call(str(name), str(dims), str(types)))
        for line, name, dims, types in self._kernel_calls(path):
            names = ";".join(_PROFILER_NAMES.get(dtype, dtype) for dtype in dtypes(types))
            found.setdefault(line, []).append(_call(name, dims, names))
        return found

    def _kernel_calls(self, path: str) -> Iterator[tuple[int, str, str, str]]:
        """Yield line, Type, shapes and dtypes of the different kernels that a file's lines got."""
        frame = self.kernels
        own = frame[(frame["path"] == path).to_numpy() & self.computes]
        own = own[(own["level"] == "line") & (own["basis"] == "call-stack")]
        cells = own[["line", "type", "input_shapes", "input_dtypes"]].drop_duplicates()
        for line, kind, shapes, types in cells.itertuples(index=False):
            yield int(line), str(kind), str(shapes), str(types)

    def at(self, path: str, site: Site) -> pd.DataFrame:
        """Return the steady kernels that the lines of a site asked for.

        Where the dump has only functions, those are the kernels of the function around them.
        """
        frame = self.kernels
        here = frame[(frame["path"] == path).to_numpy() & self.computes & self.steady]
        on_lines = here["line"].isin(list(site.lines)) & (here["level"] == "line")
        name = site.function.rsplit(".", 1)[-1]
        in_function = (here["function"] == name) & (here["level"] == "function")
        return self._asked_for(path, site.own_lines, here[on_lines | in_function])

    def _asked_for(self, path: str, own_lines: set[int], rows: pd.DataFrame) -> pd.DataFrame:
        """Leave out the kernels of a helper that others call.

        ``rotate_half`` runs for the queries on one line and for the keys on the next.
        """
        of_helper = ~rows["line"].isin(list(own_lines)).to_numpy() & (rows["level"] == "line")
        numbers = rows["stack"].to_numpy()
        called = {
            number
            for number in np.unique(numbers[of_helper]).tolist()
            if number >= 0
            and any(self._is_at(path, own_lines, site) for site in self.stacks[number])
        }
        return rows[~of_helper | np.isin(numbers, list(called))] if called else rows

    def _is_at(self, path: str, lines: set[int], frame: CallSite) -> bool:
        return frame.line in lines and self.mapped.get(frame.path, frame.path) == path

    def selections(self, path: str, lines: frozenset[int]) -> frozenset[int]:
        """Return the labels of calls there that wait until a mask has been counted."""
        ops = self.host_ops
        names = find_rows_with(ops["name"], lambda name: name in _SELECTS)
        here = names & ((ops["path"] == path) & (ops["level"] == "line")).to_numpy(bool)
        return frozenset(map(int, ops.index[here & ops["line"].isin(list(lines)).to_numpy(bool)]))

    def executions(self, path: str, line: int, lines: frozenset[int], names: set[str]) -> int:
        """Return how often a place ran: the calls of its operator over all steady steps."""
        here = self._counts.get(path, {})
        counts = [here[name] for name in names & here.keys()]
        exact = sum(count.get(line, 0) for count in counts)
        return exact or sum(count.get(at, 0) for count in counts for at in lines)

    @cached_property
    def _counts(self) -> dict[str, dict[str, dict[int, int]]]:
        """How often each line called an operator, by path and name: many places are asked for."""
        found: dict[str, dict[str, dict[int, int]]] = {}
        columns = (self.calls[name].tolist() for name in ("path", "name", "line", "count"))
        for path, name, line, count in zip(*columns, strict=True):
            lines = found.setdefault(path, {}).setdefault(name, {})
            lines[line] = lines.get(line, 0) + count
        return found


def gather_evidence(profile: Profile, mapped: Mapping[str, str]) -> Evidence:
    """Lead kernels and calls to the user's frames; ``mapped``: recorded path -> path here."""
    ops = profile.host_ops
    steps_of_ops = _host_steps(ops)
    loads = ops[find_rows_with(ops["name"], lambda name: bool(_NEXT_BATCH.fullmatch(name)))]
    cut_off = find_cut_off(profile.kernels)
    split, left_out = split_steps(
        profile.steps,
        _loading(loads, steps_of_ops),
        cut_off,
        varied=are_varied(profile.kernels),
    )
    frames = _Frames(profile, mapped)
    odd = [step.step for step in left_out]
    steady = _is_steady(profile.kernels["step"], odd)
    host_ops, steady_ops = frames.located(ops), _is_steady(steps_of_ops, odd)
    long = [s.step for s in left_out if s.reason == "outlier" and s.ratio > 1]
    in_outliers = steps_of_ops.isin([step for step in long if step is not None])
    return Evidence(
        kernels=frames.located(profile.kernels),
        computes=_computes(profile.kernels),
        steady=steady,
        host_ops=rows_where(host_ops, steady_ops),
        loads=loads,
        copies=profile.signals.copies,
        calls=_distinct_calls(host_ops, steady_ops),
        split=split,
        steps=max(1, int(profile.kernels["step"][steady].nunique())),
        left_out=tuple(left_out),
        outlier_ops=host_ops[in_outliers.to_numpy(bool)],
        stacks=profile.stacks,
        mapped=mapped,
    )


def _computes(kernels: pd.DataFrame) -> Mask:
    """Tell which tasks compute: no collectives, and no copies between host and GPU."""
    communicates: Mask = kernels["communication"].to_numpy(dtype=bool)
    copies = [kind for kind in kernels["type"].unique() if is_host_copy(str(kind))]
    computes: Mask = ~communicates & ~kernels["type"].isin(copies).to_numpy(bool)
    return computes


class _Frames:
    """The user's frame of each stack of a profile, as columns."""

    def __init__(self, profile: Profile, mapped: Mapping[str, str]) -> None:
        found = user_frames(profile.stacks, mapped)
        self._columns = {
            "path": _intern([frame.path for frame in found]),
            "function": _intern([frame.function for frame in found]),
            "via": _intern([frame.via for frame in found]),
        }
        self._lines = np.array([0, *(frame.line for frame in found)], np.int64)
        again = (
            any(_RECOMPUTES.search(f"{f.path}:{f.function}") for f in s) for s in profile.stacks
        )
        self._recomputed = np.array([False, *again], np.bool_)

    def located(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the rows with the columns of the user's frame."""
        at = rows["stack"].to_numpy() + 1
        function_level = rows["basis"].isin(_FUNCTION_LEVEL).to_numpy()
        located = {
            name: category(codes[at], texts) for name, (codes, texts) in self._columns.items()
        }
        path_codes, _ = self._columns["path"]
        level = np.where(function_level, 2, 1) * (path_codes[at] > 0)
        return rows.assign(
            **located,
            line=self._lines[at],
            level=category(level, ["", "line", "function"]),
            recomputed=self._recomputed[at],
        )


def _intern(texts: list[str]) -> tuple[NDArray[np.int32], list[str]]:
    """Return a code for each text behind that of "no frame", and the texts of the codes."""
    codes: dict[str, int] = {"": 0}
    numbers = [0, *(codes.setdefault(text, len(codes)) for text in texts)]
    return np.array(numbers, np.int32), list(codes)


def _is_steady(steps: pd.Series[int], odd: list[int | None]) -> Mask:
    """Tell which rows belong to an average: all of a run without steps, else those in a step."""
    missing = steps.isna().to_numpy()
    if missing.all():
        return np.ones(len(steps), np.bool_)
    in_odd = steps.isin([step for step in odd if step is not None]).to_numpy(dtype=bool)
    steady: Mask = ~missing & ~in_odd
    return steady


def _host_steps(ops: pd.DataFrame) -> pd.Series[int]:
    """Return the step in which each operator was called, by the operators ProfilerStep#N."""
    codes, starts = ops["name"].cat.codes.to_numpy(), ops["start_ns"].to_numpy()
    steps = np.zeros(len(ops), np.int64)
    outside = np.ones(len(ops), np.bool_)
    numbers = {
        code: int(found[1])
        for code, name in enumerate(ops["name"].cat.categories)
        if (found := _STEP_OPERATOR.fullmatch(str(name)))
    }
    for mark in np.flatnonzero(np.isin(codes, list(numbers))):
        end = starts[mark] + ops["duration_ns"].iloc[mark]
        # Operators are in start order.
        own = slice(*np.searchsorted(starts, [starts[mark], end]))
        steps[own], outside[own] = numbers[int(codes[mark])], False
    return pd.Series(pd.arrays.IntegerArray(steps, outside), index=ops.index)


def _loading(loads: pd.DataFrame, steps: pd.Series[int]) -> dict[int, int]:
    """Return how long each step waited for its batch, ns."""
    spent = loads["duration_ns"].groupby(steps[loads.index]).sum()
    return dict(zip(map(int, spent.index), map(int, spent), strict=True))


def _distinct_calls(host_ops: pd.DataFrame, steady: Mask) -> pd.DataFrame:
    # What a backward operator got belongs to another call, the forward one.
    known = (host_ops["basis"] == "call-stack") & (host_ops["path"] != "")
    keys = ["path", "line", "name", "input_dims", "input_types"]
    calls = host_ops.loc[known, keys].assign(count=steady[known.to_numpy()].astype(np.int64))
    return calls.groupby(keys, sort=True, observed=True)["count"].sum().reset_index()


def _call(name: str, dims: str, types: str) -> RecordedCall:
    kinds = tuple(part.strip() for part in types.split(";"))
    shapes = [part.strip() for part in dims.split(";")]
    shapes += [""] * (len(kinds) - len(shapes))
    return RecordedCall(
        name,
        tuple(
            None if kind in _NOT_TENSORS else _dims(shape)
            for kind, shape in zip(kinds, shapes, strict=False)
        ),
        kinds,
    )


def _dims(text: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        return None
