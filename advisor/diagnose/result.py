"""What a dump and its source, or a source alone, came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from npufix.advisor.diagnose.findings import Located
    from npufix.advisor.diagnose.foreseeing import Foreseen
    from npufix.advisor.evidence.item import Item
    from npufix.advisor.evidence.lines import Evidence
    from npufix.advisor.predict.graph.critical_path import CriticalPath
    from npufix.profiling_parsers.profile import CallSite
    from npufix.profiling_parsers.signals import Signals
    from npufix.reports import report


@dataclass(frozen=True)
class Diagnosis:
    """The report, and what the rewriters need beyond it."""

    report: report.Report
    found: tuple[Located, ...]
    evidence: Evidence | None
    torch_npu: str
    warnings: tuple[str, ...] = ()
    """What the user should know beside the report: comments that hide nothing."""
    signals: Signals | None = None
    """What the dump says beside its kernels."""
    seen: tuple[Item, ...] = ()
    """The findings about the run, with their kernels."""
    steps: pd.DataFrame | None = None
    """All recorded steps, as ``Profile.steps``."""
    modules: tuple[str, ...] = ()
    """The paths of nn.Module that its kernels refer to, as ``Profile.modules``."""
    stacks: tuple[tuple[CallSite, ...], ...] = ()
    """The call stacks that its kernels refer to, as ``Profile.stacks``."""
    path: CriticalPath | None = None
    """What its steps wait for, where they can be replayed."""
    ask: Callable[..., Foreseen[Item]] | None = None
    """Replays its steps again with what is ``asked``."""
