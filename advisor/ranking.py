"""The hot operators: where the device time goes, by Type and core."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports.report import HotOperator, HotShape, StepSplit

if TYPE_CHECKING:
    import pandas as pd

    from npufix.profiling_parsers.profile import Profile


def hot_operators(kernels: pd.DataFrame, top: int) -> list[HotOperator]:
    """Return the ``top`` Types with the most device time, compute kernels only."""
    if kernels.empty:
        return []
    keys = ["type", "core"]
    grouped = kernels.groupby(keys, observed=True)["duration_ns"]
    table = grouped.agg(["sum", "count"]).reset_index()
    total = int(table["sum"].sum()) or 1
    table = table.sort_values(["sum", "type", "core"], ascending=[False, True, True]).head(top)
    rows = []
    for kind, core, spent, calls in table.itertuples(index=False):
        own = kernels[(kernels["type"] == kind) & (kernels["core"] == core)]
        shapes = _costliest(own, ["input_shapes", "input_dtypes"])
        places = _costliest(own[own["path"] != ""], ["path", "line", "function"])
        best = places.index[0] if len(places) else None
        rows.append(
            HotOperator(
                type=str(kind),
                core=str(core),
                calls=int(calls),
                total_ns=int(spent),
                mean_ns=int(spent) // int(calls),
                share=int(spent) / total,
                shapes=_shape_text(*shapes.index[0]) if len(shapes) else "",
                other_shapes=max(0, len(shapes) - 1),
                where=f"{best[0]}:{best[1]}" if best else "",
                function=str(best[2]) if best else "",
                lines=len(places),
            )
        )
    return rows


def hot_shapes(kernels: pd.DataFrame, top: int) -> list[HotShape]:
    """Return the ``top`` combinations of Type and input shapes with the most device time."""
    known = kernels[kernels["input_shapes"].astype(str).str.strip(";") != ""]
    total = int(kernels["duration_ns"].sum()) or 1
    keys = ["type", "core", "input_shapes", "input_dtypes"]
    table = known.groupby(keys, observed=True)["duration_ns"].agg(["sum", "count"])
    table = table.sort_values("sum", ascending=False, kind="stable").head(top).reset_index()
    return [
        HotShape(
            type=str(kind),
            core=str(core),
            shapes=_shape_text(shapes, dtypes),
            calls=int(calls),
            total_ns=int(spent),
            mean_ns=int(spent) // int(calls),
            share=int(spent) / total,
        )
        for kind, core, shapes, dtypes, spent, calls in table.itertuples(index=False)
    ]


def _costliest(kernels: pd.DataFrame, keys: list[str]) -> pd.Series[int]:
    spent = kernels.groupby(keys, observed=True)["duration_ns"].sum()
    return spent.sort_values(ascending=False, kind="stable")


def _shape_text(shapes: str, dtypes: str) -> str:
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


def step_split(profile: Profile) -> StepSplit | None:
    """Return the average step; ``None`` if the dump has no step_trace_time."""
    steps = profile.steps
    if steps.empty:
        return None
    mean = steps[["computing_ns", "communication_exposed_ns", "free_ns"]].mean()
    computing, exposed, free = (round(float(value)) for value in mean)
    return StepSplit(
        steps=len(steps),
        total_ns=computing + exposed + free,
        computing_ns=computing,
        exposed_communication_ns=exposed,
        free_ns=free,
    )
