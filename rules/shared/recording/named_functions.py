"""Things that a dump shows only by the name of the user's function that asks for the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rules.shared.recording.kernel_groups import in_functions, told_together

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rules.diagnostic import Observation, Recording

LEAST_SHARE = 0.002
"""Share of the step: a name is weak evidence, but what it costs is measured."""


@dataclass(frozen=True, slots=True)
class NamedFunction:
    """A computation that goes by one name wherever it is copied to, and what does it at once."""

    pattern: str
    """A regular expression over names of functions."""
    what: str
    instead: str
    """What to type."""
    types: str = ".*"
    """Types of its kernels; those of the fused operator itself are left out."""


def by_name(recording: Recording, functions: Sequence[NamedFunction]) -> Iterator[Observation]:
    """Yield one observation per computation that launches several kernels for each call."""
    for function in functions:
        rows = in_functions(recording, function.pattern, function.types)
        # One kernel per line is as good as it gets.
        lines = rows.groupby(["path", "function"], observed=True)["line"].nunique()
        if rows.empty or (rows["type"].nunique() < 2 and lines.max() < 2):  # noqa: PLR2004
            continue
        names = sorted({str(name) for name in rows["function"].unique()})
        yield from told_together(
            f"{function.what} in {', '.join(names)}",
            rows,
            recording,
            basis=f"at most all of it; {function.instead} is not in this dump",
            saved_ns=float(rows["duration_ns"].sum()),
            evidence=(("Types", ", ".join(sorted({str(name) for name in rows["type"].unique()}))),),
            least=LEAST_SHARE,
            advice=function.instead,
        )
