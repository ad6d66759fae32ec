"""A trace_view.json with nothing beside it that lists the kernels, to a ``Profile``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.attribution.launches import attribute, find_links
from npufix.profiling_parsers.discover import OUTPUT
from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.kernels.totals import no_op_statistic
from npufix.profiling_parsers.profile import DumpError, Problem, Profile
from npufix.profiling_parsers.profiler_info import read_environment
from npufix.profiling_parsers.signals import Signals
from npufix.profiling_parsers.trace.kernels import kernels_of, steps_of
from npufix.profiling_parsers.trace.problems import link_problems, read_dump_trace
from npufix.profiling_parsers.trace.signals import trace_signals

if TYPE_CHECKING:
    from pathlib import Path

    import pandas as pd

    from npufix.profiling_parsers.attribution.operators import Attribution
    from npufix.profiling_parsers.trace.view import Trace

_PROFILE_DEVICE = (
    "profile at least one step with torch_npu.profiler.ProfilerActivity.NPU in activities"
)
WITHOUT_KERNEL_DETAILS = (
    "the kernels are taken from the trace: without shapes, dtypes and PMU counters, and with the "
    "Type that their names say"
)


@dataclass(frozen=True)
class TraceKernels:
    """Kernels, the trace they were looked for in, and what leads them to lines."""

    kernels: pd.DataFrame
    trace: Trace
    attribution: Attribution


def read_trace_alone(path: Path) -> Profile:
    """Read a trace_view.json, packed or not; raise ``DumpError`` if it shows no kernel."""
    dump = path.parent.parent if path.parent.name == OUTPUT else path.parent
    environment, problems = read_environment(dump)
    found = read_trace_kernels(path, dump, problems)
    problems.append(Problem(path.name, WITHOUT_KERNEL_DETAILS, remedies.analyse(dump)))
    return Profile(
        root=path,
        environment=environment,
        kernels=found.kernels,
        host_ops=found.attribution.host_ops,
        steps=steps_from_kernels(found.kernels),
        op_statistic=no_op_statistic(),
        stacks=found.attribution.stacks,
        modules=found.attribution.modules,
        problems=tuple(problems),
        signals=trace_signals(found.trace, Signals(), found.attribution.offset_ns),
        format="trace",
    )


def read_trace_kernels(file: Path, dump: Path, problems: list[Problem]) -> TraceKernels:
    """Read the kernels of a trace; raise ``DumpError`` if it shows none.

    What is wrong with the trace is added to ``problems``.
    """
    whole = read_dump_trace(file, None, problems, remedies.analyse(dump))
    if whole is None:
        raise DumpError(f"{file}: {problems[-1].what}", problems[-1].remedy)
    kernels, trace = kernels_of(whole)
    if malformed := trace.malformed - whole.malformed:
        what = f"{malformed} events are malformed and left out"
        problems.append(Problem(file.name, what, remedies.analyse(dump), damaged=True))
    if kernels.empty:
        cut = f" before byte {trace.cut}, where it breaks off" if trace.cut is not None else ""
        raise DumpError(f"{file}: no kernels{cut}", _PROFILE_DEVICE)
    links = find_links(kernels, trace)
    trace = trace.without_links()
    attribution = attribute(links, trace)
    problems += link_problems(file, trace, attribution, dump)
    kernels = attributed(kernels, attribution)
    kernels["step"] = steps_of(kernels, attribution.host_ops)
    return TraceKernels(kernels, trace, attribution)


def attributed(kernels: pd.DataFrame, found: Attribution) -> pd.DataFrame:
    """Return the kernels with the columns that say who asked for them."""
    return kernels.assign(
        host_op=found.host_op,
        stack=found.stack,
        basis=found.basis,
        module=found.module,
        launch_ns=found.launch_ns,
    )
