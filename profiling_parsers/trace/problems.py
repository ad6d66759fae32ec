"""trace_view.json as one file of a dump: where it lies, and what its lack or damage costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.profiling_parsers import remedies
from npufix.profiling_parsers.profile import Problem
from npufix.profiling_parsers.trace.view import Trace, read_trace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from npufix.profiling_parsers.attribution.operators import Attribution

TRACE = "trace_view.json"
_PACKED = "trace_view.json.gz"


def trace_file(output: Path) -> Path:
    """Return the trace of a dump; the path where it should be if there is none."""
    plain, packed = output / TRACE, output / _PACKED
    return packed if packed.exists() and not plain.exists() else plain


def read_dump_trace(
    file: Path, kernels: Mapping[str, int] | None, problems: list[Problem], remedy: str
) -> Trace | None:
    """Read a trace as ``read_trace`` does; what is wrong with it is added to ``problems``."""
    try:
        trace = read_trace(file, kernels)
    except FileNotFoundError:
        problems.append(Problem(file.name, "missing, so no kernel is led to a line", remedy))
        return None
    except OSError as error:
        what = f"cannot be read ({error.strerror}), so no kernel is led to a line"
        problems.append(Problem(file.name, what, "make the file readable", damaged=True))
        return None
    if trace.cut is not None:
        what = f"breaks off or is malformed at byte {trace.cut}; the events before are used"
        problems.append(Problem(file.name, what, remedy, damaged=True))
    if trace.malformed:
        what = f"{trace.malformed} events are malformed and left out"
        problems.append(Problem(file.name, what, remedy, damaged=True))
    return trace


def link_problems(file: Path, trace: Trace, found: Attribution, dump: Path) -> list[Problem]:
    """Say why kernels were not led to operators, or operators not to lines."""

    def problem(what: str, remedy: str) -> Problem:
        return Problem(file.name, what, remedy)

    if trace.cut is not None:
        return []  # what is missing may lie behind the cut, which is told
    problems = []
    if trace.operators.empty:
        what = "holds no host operators (cpu_op), so no kernel is led to a line"
        problems.append(problem(what, remedies.PROFILE_HOST))
    elif not found.stacks:
        what = "holds no call stacks, so no kernel is led to a line"
        problems.append(problem(what, remedies.PROFILE_WITH_STACKS))
    elif not any(trace.stacks):
        what = "holds no call stacks: kernels are led to functions, not to the lines in them"
        problems.append(problem(what, remedies.PROFILE_WITH_STACKS))
    if trace.flow_ends.empty:
        what = "holds no flows from operators to kernels (async_npu)"
        problems.append(problem(what, remedies.PROFILE_HOST))
    elif not found.shared_clock:
        what = "has relative timestamps or is of another run: no start of a kernel agrees"
        problems.append(problem(what, remedies.analyse(dump)))
    elif not (found.host_op >= 0).any():
        what = "none of its flows leads from an operator to a kernel"
        problems.append(problem(what, remedies.analyse(dump)))
    return problems
