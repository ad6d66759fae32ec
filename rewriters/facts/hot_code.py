"""Which functions run in every step: there a wait counts, elsewhere it is nobody's business."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.names import FunctionNode
from npufix.rewriters.graph.modules.syntax import last_name

if TYPE_CHECKING:
    import ast

    from npufix.rewriters.graph.dataflow import FunctionFlow

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_ONCE = frozenset(
    {
        "benchmark", "build", "calibrate", "checkpoint", "collate", "config", "convert", "create",
        "dataloader", "dataset", "debug", "demo", "draw", "dump", "eval", "evaluate", "evaluation",
        "evaluator", "example", "export", "extra", "format", "from", "get_config", "init",
        "initialize", "load", "loader", "main", "make", "metric", "metrics", "parse", "plot",
        "postprocess", "postprocessor", "predict", "preprocess", "print", "profile", "prune",
        "quantize", "read", "register", "repr", "report", "reset", "resize", "sampler", "save",
        "setup", "show", "summary", "test", "tokenizer", "val", "validate", "validation", "viz",
        "visualize", "visualise", "visualization", "warmup", "write",
    }
)  # fmt: skip
"""Words of a name that say that something runs once, seldom, or on the host."""
_EACH_STEP = frozenset(
    {
        "attention", "attn", "compute", "criterion", "cross", "encode", "execute", "forward",
        "fwd", "iter", "loss", "losses", "mask", "rope", "rotary", "step", "train", "training",
        "update",
    }
)  # fmt: skip
_SEEN_AS = re.compile(r"Module|Layer|Block|Loss|Criterion|Head|Model\b|Encoder|Decoder|Attention")


def is_hot(flow: FunctionFlow) -> bool:
    """Tell whether a function runs in every step, going by its name and its class.

    ``forward``, ``compute_loss`` and what else a module does; ``train_one_epoch``. Not ``__init__``,
    ``load_weights``, ``evaluate``, and nothing of a data set or a metric.
    """
    name = flow.qualname
    words = {word.lower() for word in _WORD.findall(name)}
    if flow.function.name.startswith("__") or words & _ONCE:
        return False
    if words & _EACH_STEP:
        return True
    return flow.cls is not None and _is_module(flow.cls)


def _is_module(cls: ast.ClassDef) -> bool:
    """Tell whether a class is a part of a model: it says so, or it has a ``forward``."""
    if any(_SEEN_AS.search(last_name(base)) for base in cls.bases):
        return True
    return any(isinstance(item, FunctionNode) and item.name == "forward" for item in cls.body)
