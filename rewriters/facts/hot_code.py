"""Which functions run in every step: there a wait counts, elsewhere it is nobody's business."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.names import FunctionNode
from npufix.rewriters.graph.modules.syntax import last_name

if TYPE_CHECKING:
    import ast

    from npufix.rewriters.graph.modules.scopes import Scope

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_DONE_ONCE = frozenset(
    {
        "add", "build", "calibrate", "convert", "create", "dump", "export", "from", "get_config",
        "init", "initialize", "load", "log", "make", "parse", "print", "prune", "quantize", "read",
        "register", "report", "reset", "resize", "save", "set", "setup", "show", "warmup", "write",
    }
)  # fmt: skip
"""What a function does once, where its name begins with it."""
_ASIDE = frozenset(
    {
        "benchmark", "checkpoint", "collate", "collator", "config", "dataloader", "dataset",
        "debug", "demo", "draw", "eval", "evaluate", "evaluation", "evaluator", "example",
        "loading", "main", "metric", "metrics", "plot", "postprocess", "postprocessor",
        "preprocess", "probe", "processor", "profile", "repr", "summary", "test", "tokenizer",
        "val", "validate", "validation", "visualise", "visualization", "visualize", "viz",
        "weights",
    }
)  # fmt: skip
"""Words of what runs beside the steps, or on the host."""
_EACH_STEP = frozenset(
    {
        "attention", "attn", "compute", "criterion", "encode", "execute", "forward", "fwd", "iter",
        "loss", "losses", "rope", "rotary", "step", "train", "training",
    }
)  # fmt: skip
_PART_OF_MODEL = re.compile(
    r"(Module|Layer|Block|Loss|Criterion|Head|Model|Encoder|Decoder|Attention|Runner|Sampler"
    r"|MetadataBuilder)\d?$"
)


def is_hot(scope: Scope) -> bool:
    """Tell whether a function runs in every step, going by its name and its class.

    ``forward``, ``compute_loss`` and what else a module does; ``train_one_epoch``. Not
    ``__init__``, ``load_weights``, ``evaluate``, and nothing of a data set or a metric.
    """
    name = scope.function.name
    own = [word.lower() for word in _WORD.findall(name)]
    qualname = re.sub(r"(?i)(pre|post)_?process", r"\1process", scope.qualname)
    words = {word.lower() for word in _WORD.findall(qualname)}
    if name.startswith("__") or not own or words & _ASIDE:
        return False
    if set(own) & _EACH_STEP:
        return True
    # ``build_model`` runs once, the ``build`` of what is made for each batch does not
    once = own[0] in _DONE_ONCE and (len(own) > 1 or own[0] != "build")
    return not once and scope.cls is not None and _is_part_of_model(scope.cls)


def _is_part_of_model(cls: ast.ClassDef) -> bool:
    """Tell whether a class computes with tensors step by step: its name says so, or ``forward``."""
    if any(_PART_OF_MODEL.search(name) for name in (cls.name, *map(last_name, cls.bases))):
        return True
    return any(isinstance(item, FunctionNode) and item.name == "forward" for item in cls.body)
