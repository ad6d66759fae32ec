"""What is said of when code runs. What finds it out is ``occasions``, which reports do without."""

from __future__ import annotations

from enum import Enum


class Occasion(str, Enum):
    """When a place runs; what nothing speaks against runs in each step."""

    STEP = "step"
    CALL = "call"
    """Once per call of ``generate``, per epoch, or when something is built."""
    HOST = "host"
    """On the host: data sets, processors, what was brought to the CPU."""
    ASIDE = "aside"
    """Beside the steps: validation, plots, epochs, and what is computed once and kept."""
