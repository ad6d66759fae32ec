"""Search within what is declared, and without what a text says where that is wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from npufix.rewriters.verification.inputs.cases.generate import list_edges
from npufix.rewriters.verification.inputs.search import search
from npufix.rewriters.verification.inputs.search_result import SearchResult
from npufix.rewriters.verification.inputs.sorts_and_looks import keeps_both
from npufix.rewriters.verification.inputs.source.declarations import NOTHING
from npufix.rewriters.verification.inputs.tracing import trace_cases

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.calls.coverage import LinesToCover
    from npufix.rewriters.verification.inputs.source.declarations import Declarations
    from npufix.rewriters.verification.inputs.target import Keeps, Target


def search_as_declared(  # noqa: PLR0913, PLR0917 - what is looked for, and within what
    target: Target,
    wanted: LinesToCover,
    job: Job,
    declared: Declarations,
    read: Sequence[str],
    keeps: Keeps,
) -> tuple[SearchResult, Keeps]:
    """Return what is found within what is declared, and what tells whether a call is within that.

    A text may be wrong, or say too little: then what it says is left aside, but not what the user
    says. ``read`` names what the lines read, before or after, and then what is read beside what
    they make; ``keeps`` tells whether a call is within what the user vouches for.

    Raises:
        BackendLimitError: the device itself failed.

    """
    best, within = SearchResult(), keeps
    first: Counter[str] | None = None
    says = [declared]
    if declared.shaped:
        says.append(replace(declared, times=2))  # what is cut into windows or halves
    if declared.without_texts() != declared:
        says.append(declared.without_texts())
    for said in says:
        # The host is faster; code that calls torch_npu runs on the device alone.
        for where in (target.on_host(), target) if target.on_npu else (target,):
            here = partial(keeps_both, keeps, said)
            found = search(where, wanted, job, here, declared=said, read=read)
            first = found.errors if first is None else first
            thin = best.is_thin and not found.is_thin and bool(found.assignments)
            if not best.assignments or len(found.reached) > len(best.reached) or thin:
                best, within = found, here
            if found.assignments:
                break
        edges = [case for case in list_edges(target, tuple(best.assignments), job) if within(case)]
        if (
            best.assignments
            and not best.is_thin
            and not wanted.unreached(trace_cases(target, edges, wanted, best.reached))
        ):
            break
    if first is not None and declared != NOTHING and not best.assignments:
        best.errors_as_declared = first
    return best, within
