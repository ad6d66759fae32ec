"""The hot operators, shapes, lines and modules: where the device time goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.evidence.grouping import Group, count_groups, hottest, rows_where
from npufix.reports.report import HotLine, HotModule, HotOperator, HotShape, StepSplit

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npufix.advisor.evidence.grouping import Integers
    from npufix.advisor.evidence.lines import Evidence, Mask
    from npufix.reports.report import Critical

_TYPES_SHOWN = 3
_PLACE = ("path", "line", "function", "via")


@dataclass(frozen=True, slots=True)
class Step:
    """The average step: what shares of it are taken of."""

    length_ns: int
    """0 if unknown."""
    count: int


class Ranking:
    """The compute kernels of a run, to be ranked by what they have in common."""

    def __init__(
        self,
        evidence: Evidence,
        step: Step,
        critical: Callable[[Integers], Critical | None] = lambda _: None,
    ) -> None:
        """Take the kernels that compute; collectives are ranked by nobody.

        ``critical`` says of positions among the kernels how much of them the step waits for.
        """
        self._frame = evidence.kernels
        self._rows = rows_where(evidence.computes)
        self._durations = self._frame["duration_ns"].to_numpy()
        self._steady = evidence.steady
        self._step = step
        self._critical = critical
        self.total_ns = int(self._durations[self._rows].sum())

    def hot_operators(self, top: int) -> list[HotOperator]:
        """Return the ``top`` Types with the most device time."""
        groups = hottest(self._frame, self._rows, ("type", "core"), top)
        return [self._hot_operator(group) for group in groups]

    def _hot_operator(self, group: Group) -> HotOperator:
        rows = group.rows
        shape_keys = ("input_shapes", "input_dtypes")
        (shapes,) = hottest(self._frame, rows, shape_keys, 1)
        placed = rows[self._is_known("path", rows)]
        place = next(hottest(self._frame, placed, _PLACE, 1), None)
        path, line, function, via = place.key if place else ("", "", "", "")
        mean, middle, high, longest = self._distribution(rows)
        bound, ratio = self._bound(group)
        return HotOperator(
            type=group.key[0],
            core=group.key[1],
            calls=len(rows),
            total_ns=group.total,
            mean_ns=mean,
            share=self._share(group),
            shapes=shape_text(*shapes.key),
            other_shapes=count_groups(self._frame, rows, shape_keys) - 1,
            where=f"{path}:{line}" if path else "",
            function=function,
            lines=count_groups(self._frame, placed, _PLACE[:3]),
            share_of_step=self._share_of_step(rows),
            p50_ns=middle,
            p95_ns=high,
            max_ns=longest,
            bound=bound,
            bound_ratio=ratio,
            via=via,
            critical=self._critical(rows),
        )

    def hot_shapes(self, top: int) -> list[HotShape]:
        """Return the ``top`` combinations of Type and input shapes with the most device time."""
        names = self._frame["input_shapes"].cat.categories
        has_shape = np.array([bool(str(name).strip(";")) for name in names] + [False])
        rows = self._rows[has_shape[self._frame["input_shapes"].cat.codes.to_numpy()[self._rows]]]
        keys = ("type", "core", "input_shapes", "input_dtypes")
        return [self._hot_shape(group) for group in hottest(self._frame, rows, keys, top)]

    def _hot_shape(self, group: Group) -> HotShape:
        kind, core, shapes, dtypes = group.key
        mean, middle, high, longest = self._distribution(group.rows)
        return HotShape(
            type=kind,
            core=core,
            shapes=shape_text(shapes, dtypes),
            calls=len(group.rows),
            total_ns=group.total,
            mean_ns=mean,
            share=self._share(group),
            p50_ns=middle,
            p95_ns=high,
            max_ns=longest,
            bound=self._bound(group)[0],
        )

    def hot_lines(self, top: int) -> list[HotLine]:
        """Return the ``top`` lines of the user's code by the device time they asked for."""
        rows = self._rows[self._is_known("path", self._rows)]
        keys = ("path", "line", "function", "level")
        return [self._hot_line(group) for group in hottest(self._frame, rows, keys, top)]

    def _hot_line(self, group: Group) -> HotLine:
        path, line, function, level = group.key
        (via,) = hottest(self._frame, group.rows, ("via",), 1)
        return HotLine(
            path=path,
            line=int(line),
            function=function,
            level=level,
            via=via.key[0],
            calls=len(group.rows),
            total_ns=group.total,
            share=self._share(group),
            types=self._types(group.rows),
            critical=self._critical(group.rows),
        )

    def hot_modules(self, modules: Sequence[str], top: int) -> list[HotModule]:
        """Return the ``top`` nn.Modules by the device time they themselves asked for."""
        rows = self._rows[self._frame["module"].to_numpy()[self._rows] >= 0]
        return [
            HotModule(
                module=modules[int(group.key[0])],
                calls=len(group.rows),
                total_ns=group.total,
                share=self._share(group),
                types=self._types(group.rows),
            )
            for group in hottest(self._frame, rows, ("module",), top)
        ]

    def coverage(self) -> tuple[float, float]:
        """Return the shares of the compute time led to a line, and led to a function only."""
        levels = self._frame["level"].cat
        codes = levels.codes.to_numpy()[self._rows]
        spent = np.bincount(codes, self._durations[self._rows], len(levels.categories))
        by_level = dict(zip(levels.categories, spent / (self.total_ns or 1), strict=True))
        return float(by_level["line"]), float(by_level["function"])

    def _share(self, group: Group) -> float:
        return group.total / (self.total_ns or 1)

    def _share_of_step(self, rows: Integers) -> float:
        if not self._step.length_ns:
            return 0.0
        spent = int(self._durations[rows[self._steady[rows]]].sum())
        return spent / (self._step.length_ns * self._step.count)

    def _is_known(self, column: str, rows: Integers) -> Mask:
        """Tell which rows have a text other than "" in a category."""
        texts = self._frame[column].array
        known = np.array([*(str(name) != "" for name in texts.categories.tolist()), False])
        of_rows: Mask = known[texts.codes[rows]]
        return of_rows

    def _types(self, rows: Integers) -> list[str]:
        return [group.key[0] for group in hottest(self._frame, rows, ("type",), _TYPES_SHOWN)]

    def _distribution(self, rows: Integers) -> tuple[int, int, int, int]:
        """Return mean, median, 95th percentile and maximum of the durations.

        Those of the steady steps, but for kernels that no steady step has.
        """
        steady = rows[self._steady[rows]]
        durations = self._durations[steady if len(steady) else rows]
        shares = (0.5, 0.95, 1)
        middle, high, longest = np.quantile(durations, shares, method="inverted_cdf")
        return int(durations.sum()) // len(durations), int(middle), int(high), int(longest)

    def _bound(self, group: Group) -> tuple[str, float | None]:
        """Return the pipe that limits most of the time, and how busy it is on average."""
        rows = group.rows[self._is_known("bound", group.rows)]
        # Where hardly any kernel has counters they say nothing about the group.
        if 2 * int(self._durations[rows].sum()) < group.total or not len(rows):
            return "", None
        (most,) = hottest(self._frame, rows, ("bound",), 1)
        ratios = self._frame["bound_ratio"].to_numpy()[most.rows]
        ratio = np.average(ratios, weights=self._durations[most.rows].clip(min=1))
        return most.key[0], None if np.isnan(ratio) else round(float(ratio), 4)


def step_split(evidence: Evidence) -> StepSplit | None:
    """Return the average steady step; ``None`` if the dump does not say how steps split."""
    steps = evidence.split
    if steps.empty:
        return None
    columns = ["computing_ns", "communication_exposed_ns", "free_ns", "overlapped_ns"]
    computing, exposed, free, hidden = (round(float(value)) for value in steps[columns].mean())
    preparing = round(float(steps["preparing_ns"].clip(lower=0).mean()))
    return StepSplit(
        steps=max(1, int(steps["step"].nunique())),
        recorded_steps=max(1, int(evidence.kernels["step"].nunique())),
        unit="recording" if evidence.kernels["step"].isna().all() else "step",
        total_ns=computing + exposed + free,
        computing_ns=computing,
        exposed_communication_ns=exposed,
        free_ns=free,
        overlapped_ns=hidden,
        preparing_ns=min(preparing, free),
        left_out=list(evidence.left_out),
    )


def shape_text(shapes: str, dtypes: str) -> str:
    """Return ``4,128 float; 128 bf16`` for the shapes and dtypes of a kernel's inputs."""
    names = dtypes.split(";")
    parts = shapes.split(";")
    if not any(parts):
        return "scalar" if any(names) and any(shapes) else ""
    named = [
        f"{shape or '()'} {name.removeprefix('DT_').lower()}".strip()
        for shape, name in zip(parts, [*names, *[""] * len(parts)], strict=False)
        if shape
    ]
    return "; ".join(named)
