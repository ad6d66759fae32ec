"""How to verify, from what the command line says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.advisor.console.progress_line import Countdown
from npufix.rewriters.verification import Settings
from npufix.rewriters.verification.workers.backends import (
    AUTO,
    Backend,
    choose_backend,
    prepare_backend,
)
from npufix.rewriters.verification.workers.cache import VerdictCache, user_folder
from npufix.rewriters.verification.workers.machine import survey

if TYPE_CHECKING:
    from collections.abc import Callable


def make_settings(
    on: str, *, no_cache: bool, say: Callable[[str], None], chip: str | None = None
) -> Settings:
    """Return how to verify; ``say`` gets the progress.

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
    )
