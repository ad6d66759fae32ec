"""How to verify, from what the command line says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.console.progress_line import Countdown, tell
from npufix.rewriters.verification import Settings
from npufix.rewriters.verification.workers.backends import (
    AUTO,
    Backend,
    choose_backend,
    prepare_backend,
)
from npufix.rewriters.verification.workers.cache import VerdictCache, user_folder
from npufix.rewriters.verification.workers.machine import survey
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.verdict import Verdict


class VerdictLines:
    """Says each verdict as soon as there is one; on an interrupt, that they are kept."""

    def __init__(self, *, kept: bool, told: bool = True) -> None:
        """``kept``: a next run finds them; not ``told``: they are only counted."""
        self._kept, self._told = kept, told
        self._said = 0

    def __call__(self, job: Job, verdict: Verdict, total: int) -> None:
        """Say one of several: that of a single function is the whole answer, which follows."""
        self._said += verdict.on != Backend.NONE.value  # what was lost is tried again
        if self._told and total > 1:
            first = next(iter(job.lines_original), 1)
            name = os.path.relpath(job.path, job.root)
            name = Path(job.path).name if name.startswith(os.pardir) else name
            tell(f"{verdict.status.value}: {name}:{first} {job.qualname}")

    def __enter__(self) -> VerdictLines:  # noqa: PYI034 - Self is younger than 3.10
        """Begin."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: object, _trace: TracebackType | None
    ) -> None:
        """Say what is left of the work."""
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.say_kept()

    def say_kept(self) -> None:
        """Say what a next run finds."""
        if self._said and self._kept:
            tell(f"{format_count(self._said, 'verdict')} kept: the same command goes on from there")


def make_settings(
    on: str,
    *,
    no_cache: bool,
    say: Callable[[str], None],
    decided: Callable[[Job, Verdict, int], None] = lambda *_: None,
    chip: str | None = None,
) -> Settings:
    """Return how to verify; ``say`` gets the progress, ``decided`` the verdicts.

    Raises:
        GroundError: this machine cannot do what ``on`` asks for.

    """
    ground, stubs = prepare_backend(choose_backend(survey(), on), on, chip or "A2")
    return Settings(
        ground=ground,
        chip=chip or "A2",
        stubs=stubs,
        fallback=Backend.REFERENCE if on == AUTO and ground is not Backend.REFERENCE else None,
        cache=None if no_cache else VerdictCache(user_folder()),
        progress=Countdown(say),
        decided=decided,
    )
