"""What limits a step: what is busy for longest of it, whoever waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from npufix.advisor.predict.graph.replay import Edit
    from npufix.advisor.predict.graph.step_graph import StepGraph


def limit_of(graph: StepGraph, edit: Edit) -> tuple[str, int]:
    """Return host, computing, communication, loading or pauses, and how long that is, ns."""
    delta = np.append(graph.delta_ns, graph.rest_ns)
    delta[edit.delta_rows] = edit.deltas_ns
    waits = [w for n, w in enumerate(graph.host_waits) if n not in edit.waits_gone]
    calls = sum(wait.delta_ns + wait.own_ns for wait in waits) - sum(edit.waits_sooner.values())
    taken = graph.duration_ns.copy()
    taken[edit.rows] = edit.durations_ns
    gaps = graph.gap_ns.copy()
    gaps[edit.gap_rows] = edit.gaps_ns
    taken += 0 if graph.coarse else gaps
    taken[edit.gone] = 0
    busy = np.bincount(graph.stream, taken, graph.streams)
    communicates = np.bincount(graph.stream, graph.communication, graph.streams) > 0
    loading = [wait.period_ns for wait in waits if wait.stream < 0]
    limits = {
        "host": float(delta.sum()) + calls,
        "computing": float(busy[~communicates].max(initial=0)),
        "communication": float(busy[communicates].max(initial=0)),
        "loading": sum(loading),
    }
    if graph.coarse:  # what the host needs is not known, what it leaves idle is
        limits["pauses"] = graph.measured_ns - limits["computing"] - limits["communication"]
    name = max(limits, key=lambda key: limits[key])
    return name, round(limits[name] / graph.steps)
