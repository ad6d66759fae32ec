"""How far operators and lines are from the shortest time that the chip allows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pandas as pd

from npufix.advisor.predict.link_bounds import link_bounds
from npufix.advisor.roofline.bounds import LIMITS, LINK, compute_bounds
from npufix.advisor.roofline.rates import find_rates
from npufix.advisor.roofline.work import COLUMNS as WORK_COLUMNS
from npufix.advisor.roofline.work import RATE_NAMES, work_of
from npufix.profiling_parsers.kineto.names import DTYPES
from npufix.reports.prediction import Headroom, HeadroomRow
from npufix.rules.shared.recording.observing import rows_where
from npufix.rules.shared.recording.versions import chip_families

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from npufix.advisor.evidence.lines import Evidence
    from npufix.profiling_parsers.profile import Environment
    from npufix.profiling_parsers.signals import Signals

    Floats = NDArray[np.float64]
    Integers = NDArray[np.int64]


_COLUMNS = [
    *WORK_COLUMNS, "name", "core", "duration_ns", "communication", "path", "line", "host_op",
]  # fmt: skip


def find_headroom(
    evidence: Evidence, signals: Signals, environment: Environment, top: int
) -> Headroom | None:
    """Return what the steady kernels take above their bounds; ``None`` without a kernel.

    ``top`` operators and lines are told.
    """
    kernels = rows_where(evidence.kernels[_COLUMNS], evidence.steady)
    durations = kernels["duration_ns"].to_numpy(np.float64)
    if not durations.sum():
        return None
    communicates = kernels["communication"].to_numpy(bool)
    own = with_shapes(rows_where(kernels, ~communicates), evidence.host_ops)[WORK_COLUMNS]
    work = work_of(own)
    families = chip_families(environment, kernels["core"].cat.categories)
    rates = find_rates(work, durations[~communicates], environment.chip, families)
    bounds = compute_bounds(work, rates)
    if len(own) == len(kernels):
        times, limit = bounds.time_ns[work.of_kernel], bounds.limit[work.of_kernel]
    else:
        times, limit = np.zeros(len(kernels)), np.zeros(len(kernels), np.int8)
        times[~communicates] = bounds.time_ns[work.of_kernel]
        limit[~communicates] = bounds.limit[work.of_kernel]
        sent = kernels[communicates]
        times[communicates] = link_bounds(sent, signals, rates.link_bytes_per_ns)
        limit[communicates] = LINK
    # What a cache held is quicker than memory, and no kernel is below its own time.
    shortest = np.minimum(times, durations)
    sums = _Sums(shortest, durations, limit, shortest > 0, evidence.steps)
    known = float(durations[sums.known].sum())
    used = [name for at, name in enumerate(RATE_NAMES) if name and (work.rate == at).any()]
    return Headroom(
        basis=rates.basis,
        chip=rates.chip,
        sources=list(rates.sources),
        tb_per_s=round(rates.bytes_per_ns / 1000, 3),
        tflops={n: round(float(rates.operations[RATE_NAMES.index(n)]) / 1000, 1) for n in used},
        covered=known / float(durations.sum()),
        time_ns=round(known / evidence.steps),
        bound_ns=round(float(shortest.sum()) / evidence.steps),
        above_ns=round((known - float(shortest.sum())) / evidence.steps),
        operators=sums.of_types(kernels, top),
        lines=sums.of_lines(kernels, top),
    )


def with_shapes(kernels: pd.DataFrame, host_ops: pd.DataFrame) -> pd.DataFrame:
    """Take a kernel without shapes (Level0) for its operator, where that launches no other one."""
    asked = kernels["host_op"]
    bare = (kernels["input_shapes"] == "").to_numpy(bool) & asked.isin(host_ops.index).to_numpy()
    bare &= ~asked.duplicated(keep=False).to_numpy()
    if not bare.any() or (kernels["input_shapes"] != "").any():
        return kernels
    ops = host_ops.loc[asked[bare], ["name", "input_dims", "input_types"]].astype(str)
    found = kernels.astype(dict.fromkeys(WORK_COLUMNS, object))
    cells = [(name, *_tensors(dims, types)) for name, dims, types in ops.itertuples(index=False)]
    for column, values in zip(WORK_COLUMNS, zip(*cells, strict=True), strict=False):
        found.loc[bare, column] = np.array(values, object)
    return found.astype(dict.fromkeys(WORK_COLUMNS, "category"))


def _tensors(dims: str, types: str) -> tuple[str, str]:
    """Return shapes and dtypes of the tensors of ``32,8;8,4;`` and ``float;float;Scalar``."""
    both = zip(dims.split(";"), types.split(";"), strict=False)
    found = [(shape, DTYPES[kind]) for shape, kind in both if kind in DTYPES]
    return ";".join(shape for shape, _ in found), ";".join(kind for _, kind in found)


class _Sums(NamedTuple):
    """The columns that rows of the report are sums of."""

    shortest: Floats
    durations: Floats
    limit: NDArray[np.int8]
    known: NDArray[np.bool_]
    steps: int

    def of_types(self, kernels: pd.DataFrame, top: int) -> list[HeadroomRow]:
        types = kernels["type"].cat
        return self.rows(
            np.asarray(types.codes, np.int64), lambda at: str(types.categories[at]), top
        )

    def of_lines(self, kernels: pd.DataFrame, top: int) -> list[HeadroomRow]:
        paths, lines = kernels["path"].cat, kernels["line"].to_numpy(np.int64)
        names = list(map(str, paths.categories))
        longest = int(lines.max(initial=0)) + 1
        keys = paths.codes.to_numpy(np.int64) * longest + lines
        of_row, distinct = pd.factorize(keys)
        places = [(names[key // longest], key % longest) for key in distinct.tolist()]
        chosen = np.array([bool(path) for path, _ in places])[of_row]
        named = [f"{path}:{line}" for path, line in places]
        own = self._replace(known=self.known & chosen)
        return own.rows(np.asarray(of_row, np.int64), named.__getitem__, top)

    def rows(self, keys: Integers, name: Callable[[int], str], top: int) -> list[HeadroomRow]:
        """Return a row for each key, those first that take most above their bounds."""
        own = keys[self.known]
        count = int(own.max(initial=-1)) + 1
        shortest = self.shortest[self.known]
        time = np.bincount(own, self.durations[self.known], count)
        least = np.bincount(own, shortest, count)
        calls = np.bincount(own, minlength=count)
        cells = own * len(LIMITS) + self.limit[self.known]
        split = np.bincount(cells, shortest, count * len(LIMITS)).reshape(count, len(LIMITS))
        order = np.argsort(least - time, kind="stable")
        return [
            HeadroomRow(
                name=name(at),
                calls=int(calls[at]),
                time_ns=round(time[at] / self.steps),
                bound_ns=round(least[at] / self.steps),
                above_ns=round((time[at] - least[at]) / self.steps),
                limit=LIMITS[int(split[at].argmax())],
                reached=float(least[at] / time[at]),
            )
            for at in order.tolist()
            if time[at] > 0
        ][:top]
