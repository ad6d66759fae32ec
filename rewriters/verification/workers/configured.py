"""What the changed settings of an optimizer make: a question about the optimizer.

``optimizer = dict(type="AdamW", lr=2e-4, paramwise_cfg=...)`` in a configuration file is no
function; the registry that reads it makes ``torch.optim.AdamW(params, lr=2e-4)``.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npufix.rewriters.edit.job import Job

_MADE = "import torch\n\n\ndef NAME(params):\n    return torch.optim.CLASS(paramsSETTINGS)\n"
_CLASSES = frozenset({"Adam", "AdamW", "SGD"})
_SETTINGS = frozenset(
    {"lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "foreach", "fused"}
    | {"capturable", "differentiable", "momentum", "dampening", "nesterov"}
)
"""What these classes take; other settings are for the registry."""


def make_optimizers(job: Job, name: str) -> Job | None:
    """Return the same question about two functions that make an optimizer; None if it is another.

    Nothing but one ``dict(type=...)`` may differ, and its type may not.
    """
    trees = [ast.parse(text) for text in (job.original, job.patched)]
    mine, other = (
        [n for n in ast.walk(tree) if isinstance(n, ast.Call) and ast.unparse(n.func) == "dict"]
        for tree in trees
    )
    differing = [p for p in zip(mine, other, strict=False) if ast.dump(p[0]) != ast.dump(p[1])]
    if not differing or job.portable:
        return None
    pair = differing[-1]  # the innermost: outer ones come first
    texts = [_append(t, c, name) for t, c in zip((job.original, job.patched), pair, strict=True)]
    pair[1].keywords = pair[0].keywords
    original, patched = texts
    if original is None or patched is None or ast.dump(trees[0]) != ast.dump(trees[1]):
        return None
    lines = [(len(text.splitlines()),) for text in (original, patched)]
    return replace(
        job,
        original=original,
        patched=patched,
        probes=(),
        qualname=name,
        lines_original=lines[0],
        lines_patched=lines[1],
    )


def _append(text: str, call: ast.Call, name: str) -> str | None:
    given = {k.arg: ast.unparse(k.value) for k in call.keywords}
    kind = ast.literal_eval(given.get("type", "''")) if given.get("type", "")[:1] in "'\"" else ""
    if kind not in _CLASSES or call.args or None in given:
        return None
    settings = "".join(f", {key}={value}" for key, value in given.items() if key in _SETTINGS)
    made = _MADE.replace("NAME", name).replace("CLASS", kind).replace("SETTINGS", settings)
    return f"{text.rstrip()}\n\n\n{made}"
