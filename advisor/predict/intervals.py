"""What a step would be with a change, and between which limits, nine times of ten."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from npufix.advisor.predict.graph.replay import NO_EDIT
from npufix.advisor.predict.limits import limit_of
from npufix.reports.prediction import Forecast, Prediction

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from npufix.advisor.predict.graph.replay import Edit
    from npufix.advisor.predict.graph.step_graph import StepGraph

    Floats = NDArray[np.float64]
    Three = tuple[Edit, Edit, Edit]

_USUAL_STEPS, _USUAL_SPREAD = 2, 0.006
"""How far steps are from each other before any was seen, and as how many of them that counts."""
_QUANTILE = 1.645
"""Of the normal distribution: nine of ten cases lie within so many standard deviations."""
_OFF, _OFF_OF_RECORDED, _OFF_OF_LAUNCHES, _OFF_OF_LATE_HOST = 0.04, 0.015, 0.12, 0.15
"""How far a replay is off in what a change saves, nine times of ten; the second where all that
goes was recorded: a pause of 9 ms, kernels that nothing takes the place of; the third where the
host limits the step and launches less: what it needs for the operators that come is in their
corners; the last where a host becomes as quick as those of other ranks."""
_OFF_OF_LEAST_KNOWN = 0.2
"""The same where collectives change: how much of them hides is known least."""
_OFF_OF_WAITS = 0.08
"""The same of calls that no longer wait, where the host limits the step: what they do besides, and
those around them."""
_AROUND_WAIT_NS = 8_000
"""What Python does around a call that waits no longer, or is not made: no operator shows it."""
_OFF_OF_STAGES = 0.3
"""The same of what bubbles of a pipeline are shorter: stages wait for each other in turn."""
_CORNERS = 0.75
"""Of the way to where all new kernels are as slow as they may be at once: nine of ten cases."""
_CLEAR = 0.0005
"""Share of the step; what is less is neither a gain nor a loss."""


@dataclass(frozen=True, slots=True)
class View:
    """A step as it is, by which those with changes are judged; times in nanoseconds."""

    graph: StepGraph
    now: float
    error: float
    waited: float = 0.0
    """What it waits for other ranks, which gain ``slower`` times as much as it."""
    slower: float = 1.0
    made_ns: float = 0.0
    """In which time processes make the batches of a step, which none had to wait for; 0 where one
    had, or nobody makes any."""

    @property
    def certain_ns(self) -> float:
        """Return the most that is sure to be saved: the loader may not keep up with more."""
        return self.now - self.made_ns if self.made_ns else math.inf

    def prediction(
        self,
        steps: Floats,
        three: Three,
        lean: float = 0.0,
        floor: float = 0.0,
        staged: float = 0.0,
    ) -> Prediction:
        """Return what the corners of a change come to.

        ``lean`` is what a rank saves that never waits for others, ``floor`` how often batches come,
        ``staged`` how long it waits for stages that change as it does.
        """
        low, middle, high = (float(step) for step in (steps.min(), steps[1], steps.max()))
        _, edit, best = three
        limit, limit_ns = limit_of(self.graph, edit)
        if floor > limit_ns:
            limit, limit_ns = "loading", round(floor)
        # Who waits for a rank that computes longer gains what that one does.
        own = max(0.0, self.now - middle)
        more = min(self.waited, max(0.0, max(own, lean) * self.slower - own))
        # What it waits for another stage is as much shorter as what it does itself meanwhile.
        shorter = staged * own / max(self.now - staged, own, 1.0)
        low, middle, high = low - shorter, middle - shorter, high - shorter
        more = max(0.0, more - shorter)
        low, middle, high = low - more, middle - more, high - more
        noise = middle * max(self._noise(limit), min(self.error, 0.05))
        noise = math.hypot(noise, self._off(edit, limit) * (self.now - middle), more)
        around = _AROUND_WAIT_NS * len(edit.waits_gone) / self.graph.steps if limit == "host" else 0
        noise = math.hypot(noise, _OFF_OF_STAGES * shorter, around)
        # That the new kernels are slow and the run, too, is less likely than one of both; that all
        # of some communication hides is not.
        below = math.hypot((1 if self._hides(edit) else _CORNERS) * (middle - low), noise)
        stays = high >= self.now * (1 - _CLEAR)  # what may gain nothing is no matter of kernels
        above = math.hypot((1 if stays else _CORNERS) * (high - middle), noise)
        saved = self.now - middle
        least, most = self.now - high, self.now - low
        if self.made_ns:  # more than that it keeps up with is not known
            above = max(above, self.made_ns - middle)
            least = min(least, self.certain_ns)
        below = min(below, middle - min(middle, self._busy_ns(best)))
        clear = _CLEAR * self.now
        verdict = "unclear"
        if most < -clear:
            verdict = "loss"
        elif least >= -clear:
            # Where most likely nothing is gained, something may be.
            verdict = "none" if most <= clear else "gain" if saved > clear else "unclear"
        if verdict == "none" and limit == "loading":
            # Batches that may not come late every time leave a gain between.
            between = self._busy_ns(NO_EDIT) - max(self._busy_ns(edit), middle - below)
            if between > clear:
                verdict, most = "unclear", between
        return Prediction(
            round(middle), round(middle - below), round(middle + above), round(saved), round(least),
            round(most), verdict, limit, limit_ns,
        )  # fmt: skip

    def _off(self, edit: Edit, limit: str) -> float:
        """Return by how much of what it saves a change may be off."""
        if self._hides(edit):
            return _OFF_OF_LEAST_KNOWN
        if limit == "host" and len(edit.gone):
            return _OFF_OF_LAUNCHES
        if len(edit.delta_rows) >= len(self.graph.label) and not edit.is_divided:
            return _OFF_OF_LATE_HOST
        if limit == "host" and edit.waits_gone and not len(edit.rows):
            return _OFF_OF_WAITS
        return _OFF if len(edit.rows) else _OFF_OF_RECORDED

    def _hides(self, edit: Edit) -> bool:
        """Tell whether a change is to communication, of which some or all may hide."""
        return len(edit.rows) > 0 and bool(self.graph.communication[edit.rows].any())

    def _busy_ns(self, edit: Edit) -> float:
        """Return what no step is shorter than: the longest that a stream computes."""
        taken = self.graph.duration_ns.copy()
        taken[edit.rows] = edit.durations_ns
        taken[np.concatenate([edit.gone, np.flatnonzero(self.graph.communication)])] = 0
        busy = np.bincount(self.graph.stream, taken).max(initial=0)
        return float(busy) / self.graph.steps * (1 - 2 * _USUAL_SPREAD)

    def forecast(self) -> Forecast:
        """Return the run as it is."""
        limit, limit_ns = limit_of(self.graph, NO_EDIT)
        steps, kernels = self.graph.steps, len(self.graph.label)
        error = round(self.error, 5)
        model = "pauses" if self.graph.coarse else "replay"
        return Forecast(model, round(self.now), error, steps, kernels, limit, limit_ns, None)

    def _noise(self, limit: str) -> float:
        """Return how far as many steps to come are from what is foreseen, in nine of ten cases.

        Their mean is by luck as far off as that of the recorded ones. Of few steps the spread is
        hardly known: it is that of as many more usual ones, too.
        """
        graph = self.graph
        rounds = max((wait.period_spread for wait in graph.host_waits), default=0.0)
        if limit == "loading" and rounds:
            return _QUANTILE * rounds
        steps = 1 if graph.coarse else graph.steps
        known = _USUAL_STEPS + steps - 1
        squares = _USUAL_STEPS * _USUAL_SPREAD**2 + (steps - 1) * graph.spread**2
        quantile = _QUANTILE + 1.52 / known + 1.6 / known**2  # of Student's distribution
        return quantile * math.sqrt(2 * squares / known / steps * graph.alike)
