"""Classes that are no modules, and whose objects a step calls or tells its losses."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import last_name

if TYPE_CHECKING:
    import ast

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_IS_CALLED = re.compile(r"(Loss|Criterion|Assigner|Matcher|Block|Layer|Model|Head)(V?\d+)?$")
"""Classes that may be no modules, and are called in each step."""
_LEARNS = frozenset({"criterion", "loss", "losses"})
"""Words of what a step computes its loss with: ``RPNLossComputation``, ``LossEvaluator``."""
_ASSIGNS = frozenset({"assigner", "matcher", "pooling", "sampler", "target", "targets"})
"""Words of classes that, called, choose what a loss is taken of: ``TargetPreparer.__call__``."""
_KEEPS_LOSSES = frozenset(
    {
        "aggregator", "backend", "callback", "config", "dataset", "history", "hook", "logger",
        "loader", "meter", "monitor", "plot", "plotter", "recorder", "report", "reporter",
        "scheduler", "state", "tracker", "watcher", "writer",
    }
)  # fmt: skip
"""Words of classes that are told of losses, and compute none: ``LossHistory``."""
_IS_TOLD = re.compile(r"^(\w*(Metric|Meter|Loss)Logger|\w*Meters?)$")
"""Classes that each step tells its losses: ``MetricLogger.update``."""
_OF_METRICS = re.compile(r"(Metric(s|Stats)?|Precision|Recall)$")
"""Bases of what is computed beside steps: ``MeanAveragePrecision``."""

_KEEPS_METRICS = re.compile(r"(Metrics?|Statistics)Manager$")
"""What goes over all data, or reads what an epoch has counted: ``DataStatisticsManager``."""


@lru_cache(maxsize=4096)
def list_words(qualname: str) -> frozenset[str]:
    """Return the words of a name: ``ap``, ``postprocess``, ``step`` of ``APPostProcess.step``."""
    joined = re.sub(r"(?i)(pre|post)_?process", r"\1process", qualname)
    joined = re.sub(r"(?i)(logits|attn|attention|score)_?processor", r"\1", joined)
    return frozenset(word.lower() for word in WORD.findall(joined))


def is_called_in_step(cls: ast.ClassDef) -> bool:
    """Tell whether objects of a class, no modules perhaps, are called in each step."""
    return _IS_CALLED.search(cls.name) is not None or _is_for(cls, _LEARNS | _ASSIGNS)


def computes_loss(cls: ast.ClassDef) -> bool:
    """Tell whether the name of a class says so: ``RPNLossComputation``, not ``LossHistory``."""
    return _is_for(cls, _LEARNS)


def is_told(cls: ast.ClassDef) -> bool:
    """Tell whether each step tells the objects of a class its losses: ``MetricLogger``."""
    return _IS_TOLD.search(cls.name) is not None


def _is_for(cls: ast.ClassDef, purposes: frozenset[str]) -> bool:
    words = list_words(cls.name)
    return bool(words & purposes) and words.isdisjoint(_KEEPS_LOSSES)


def is_metric(cls: ast.ClassDef | None) -> bool:
    """Tell whether a class computes a metric, and is no module."""
    bases = [] if cls is None else [last_name(base) for base in cls.bases]
    is_module = any(base.endswith("Module") for base in bases)
    if cls is not None and _KEEPS_METRICS.search(cls.name):
        return True
    return not is_module and any(map(_OF_METRICS.search, bases))
