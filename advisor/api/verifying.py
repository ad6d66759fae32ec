"""Two functions compared, in a test or a notebook: ``assert npufix.verify(old, new)``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.api.showing import Shown
from npufix.advisor.api.standing_alone import COMPARED, standing_alone
from npufix.advisor.verify.changes import Changes, read_changed_file
from npufix.advisor.verify.settings import make_settings
from npufix.advisor.verify.verifying import Checked, Given, check, report_changes
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.verification.workers.backends import Backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npufix.reports import report
    from npufix.reports.verification import Verification


class Verified(Shown):
    """The verdict on two functions; true only where both were run and agree."""

    def __init__(self, report: Verification) -> None:
        """``verify`` makes one."""
        self._result = report

    def __bool__(self) -> bool:
        """Tell whether the two are equivalent; what could not be told is no yes."""
        return self.status == "equivalent" and bool(self.report.functions)

    @property
    def status(self) -> str:
        """``equivalent``, ``refuted`` or ``not verified``."""
        return self.report.status

    @property
    def verdict(self) -> report.Verdict:
        """Why: the reason, the counterexample, what was tried, the errors."""
        return self.report.functions[0].verdict

    @property
    def report(self) -> Verification:
        """The whole result, as ``npufix verify --json`` writes it."""
        report: Verification = self._result
        return report


def verify(  # noqa: PLR0913 - one parameter an option
    old: Callable[..., object],
    new: Callable[..., object],
    *,
    allow: Sequence[str] = (),
    assume: Sequence[str] = (),
    on: str = "auto",
    chip: str | None = None,
    cache: bool = True,
) -> Verified:
    """Run two functions on the same inputs, and say whether they do the same.

    Values, dtypes, gradients, effects on arguments and exceptions are compared, on inputs that
    reach every line, in a child process with limits on time and memory. ``assume`` says what
    callers pass (``"x: float[b, s, h]"``), ``allow`` vouches for conditions, ``on`` and ``chip``
    choose what to run on, as the options of ``npufix verify`` do. In pytest a refuted pair shows
    its counterexample: ``assert npufix.verify(old, new)``.

    Raises:
        SourceLostError: one of them is no function that stands for itself.
        GroundError: this machine cannot do what ``on`` asks for.

    """
    before, after = standing_alone(old), standing_alone(new)
    folder = _folder(new)
    path = folder / f"{COMPARED}.py"
    file = read_changed_file(new.__name__, path, folder, before.encode(), after.encode())
    changes = Changes((file,), old.__name__)
    settings = make_settings(on, no_cache=not cache, say=lambda _: None, chip=chip)
    given = Given(frozenset(allow), None, tuple(assume), COMPARED)
    checked = check(changes, settings, given) or [_same(new.__name__)]
    code = new.__code__
    file_name, line = Path(code.co_filename).name, code.co_firstlineno
    named = [replace(c, name=file_name, line=line, function=new.__name__) for c in checked]
    return Verified(report_changes(changes, named))


def _folder(function: Callable[..., object]) -> Path:
    """Return where what a function imports is looked for: beside its package, or here."""
    module = sys.modules.get(function.__module__)
    file = getattr(module, "__file__", None)
    if not file:
        return Path.cwd()
    return Path(file).resolve().parents[function.__module__.count(".")]


def _same(name: str) -> Checked:
    """Return the verdict on two functions that say the same, but for comments and layout."""
    ground = "nothing ran: both say the same"
    return Checked(name, 1, name, Verdict(Status.EQUIVALENT, ground, name, on=Backend.NONE.value))
