"""Outputs, one file each: a file dropped in here is an output, there is no list to keep.

In: a ``Result``. Out: what a file holds. Each file has a ``FORMAT``, which says what
``-o NAME=FILE`` calls it and what renders each type of result. A type that is not among
``renders`` cannot be written so, and no command that has such a result offers it. ``github`` is a
short one to begin with.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from npufix.reports.data.sources import Sources

if TYPE_CHECKING:
    from npufix.reports.data.tables import StepRow
    from npufix.reports.html.details import Details
    from npufix.reports.report import Finding, Report

ALL_ROWS = 10**9
Rendered = str | Mapping[str, str] | Callable[[IO[bytes]], None]
"""A text; texts by name of the file, for a folder; or what writes a file piece by piece."""
T_co = TypeVar("T_co", covariant=True)


class RunDetails(Protocol):
    """What is known of a run beyond its report; made only when a format asks for it."""

    @property
    def is_recorded(self) -> bool:
        """Whether there is a dump, not a source alone."""

    def page_details(self, report: Report) -> Details:
        """Return what the charts of a page are drawn from."""

    def step_rows(self) -> list[StepRow]:
        """Return all recorded steps."""

    def stack_times(self) -> list[tuple[tuple[str, ...], int]]:
        """Return the nanoseconds of all kernels by call stack, outermost frame first."""

    def write_tracks(
        self, findings: list[Finding], file: IO[bytes], *, packed: bool, whole: bool
    ) -> None:
        """Write the findings over the recorded trace or, without ``whole``, alone."""


@dataclass(frozen=True, slots=True)
class Result(Generic[T_co]):
    """What a command has come to, and how its user wants to see it."""

    report: T_co
    """``Report``, ``GateReport``, ``Comparison`` or ``Verification``, whole."""
    sources: Sources = field(default_factory=Sources)
    details: bool = False
    """The user has asked for more: ``-v``."""
    sections: tuple[str, ...] = ()
    """Which sections of a report its user wants instead of the first screen."""
    top: int = 10
    """How many rows of a table are shown where a format does not hold more."""
    run: RunDetails | None = None
    path: Path = Path("-")
    """Where it goes."""
    room: int | None = None
    """How many bytes there are for it; None: as many as it takes."""


@dataclass(frozen=True, kw_only=True)
class Format:
    """An output."""

    name: str
    about: str
    """One sentence for the documentation."""
    renders: Mapping[type, Callable[[Result[Any]], Rendered]]
    """What makes it of each type of result."""
    ending: str = ""
    """What the name of a file ends in that needs no ``NAME=`` before it."""
    is_binary: bool = False
    """It is nothing for the standard output."""
    is_folder: bool = False
    """It is several files, in the folder that the user names."""
    rows: int = 0
    """How many rows of each table it holds, if more than the terminal shows."""
    shows_changes: bool = False
    """It shows the change of each finding, which has to be made first."""
    shows_headroom: bool = False
    """It shows how far kernels are from what the chip allows."""
    needs_recording: bool = False
    """A source alone is not enough."""
    check: Callable[[], None] | None = None
    """Raises an error where this machine cannot write it."""

    def takes(self, result: Result[Any]) -> bool:
        """Tell whether this result can be written so."""
        is_recorded = result.run is not None and result.run.is_recorded
        return type(result.report) in self.renders and (is_recorded or not self.needs_recording)

    def render(self, result: Result[Any]) -> Rendered:
        """Return what the file holds; ``takes`` has said that it can."""
        return self.renders[type(result.report)](result)


@cache
def formats() -> dict[str, Format]:
    """Return every output by its name.

    Raises:
        TypeError: a file of this folder has no ``FORMAT``.

    """
    found = {}
    for info in pkgutil.iter_modules(__path__):
        module = importlib.import_module(f"{__name__}.{info.name}")
        made = getattr(module, "FORMAT", None)
        if not isinstance(made, Format):
            raise TypeError(f"{module.__name__} has no FORMAT")
        found[made.name] = made
    return dict(sorted(found.items()))
