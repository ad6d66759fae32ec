"""Which classes of layers an annotation names, or code looks for in a model."""

from __future__ import annotations

import ast
import inspect
import re
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.inputs.source.parameters import list_parameters

if TYPE_CHECKING:
    from collections.abc import Collection

_KINDS = 2
"""Of layers with a base in common: of images, and of sequences."""
_CHANGES_NOTHING = r"drop|^p$|inplace|^track_running_stats$"
"""What computes other numbers each time, the same numbers, or without statistics."""
_EPS = 0.25
_WEIGHT = frozenset({"weight", "running_var"})
_TELLING = (
    ("Linear", r"^(in|out)_features$"),
    ("Conv2d", r"^(in|out)_channels$|^kernel_size$"),
    ("BatchNorm2d", r"^running_(mean|var)$|^num_features$"),
    ("LayerNorm", r"^normalized_shape$"),
    ("Embedding", r"^(num_embeddings|embedding_dim)$"),
)
"""What code reads of a layer with a weight that no other one has."""


def list_layers(annotation: str) -> list[str]:
    """Return the classes of ``torch.nn`` that an annotation allows, those of images first.

    ``nn.modules.conv._ConvNd`` is what several have in common, and cannot be made itself.
    """
    name = find_class_of(annotation, torch.nn, torch.nn.Module)
    if name:
        return [name]
    files = [f for f in vars(torch.nn.modules).values() if inspect.ismodule(f)]
    named = ((f, find_class_of(annotation, f, torch.nn.Module)) for f in files)
    bases = [getattr(f, base) for f, base in named if base]
    kinds = [n for n, k in vars(torch.nn).items() if bases and _is_one_of(k, bases[0])]
    return sorted(kinds, key=lambda n: (len(n), not n.endswith("2d")))[:_KINDS]


def _is_one_of(kind: object, base: type) -> bool:
    made = isinstance(kind, type) and issubclass(kind, base)
    return made and not kind.__name__.startswith(("Lazy", "Sync"))  # type: ignore[attr-defined]


def find_by_attributes(attributes: Collection[str]) -> list[str]:
    """Return the class of a layer of which code reads these: ``conv.weight, conv.kernel_size``."""
    has_weight = not _WEIGHT.isdisjoint(attributes)
    found = [kind for kind, own in _TELLING if any(re.match(own, a) for a in attributes)]
    return found[:1] if has_weight else []


def find_class_of(annotation: str, module: object, base: type) -> str:
    """Return the name of a class of a module that an annotation is; empty if it is none."""
    name = annotation.strip("'\"").rpartition(".")[2]
    found = getattr(module, name, None) if name.isidentifier() else None
    return name if isinstance(found, type) and issubclass(found, base) else ""


def list_sought(function: ast.AST | None, name: str) -> list[str]:
    """Return the classes of layers that code goes through a model for, as it spells them.

    ``nn.Conv2d`` for ``for m in model.modules(): if isinstance(m, nn.Conv2d)``.
    """
    through = re.compile(rf"\b{name}(\.\w+)*\.(named_)?(modules|children)\(")
    found: list[str] = []
    for outer in ast.walk(function) if function is not None else ():
        loops = [outer] if isinstance(outer, ast.For) else getattr(outer, "generators", ())
        targets = [n.target for n in loops if through.search(ast.unparse(n.iter))]
        each = {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        for code in ast.walk(outer) if each else ():
            match code:
                case ast.Call(ast.Name("isinstance"), [ast.Name(part), kinds]) if part in each:
                    listed = kinds.elts if isinstance(kinds, ast.Tuple) else [kinds]
                    found += map(ast.unparse, listed)
    return list(dict.fromkeys(found))


def list_other_settings(kind: str) -> list[dict[str, object]]:
    """Return what a layer of ``torch.nn`` may be made with that no default is.

    All numbers at once, ``stride=2, padding=1, dilation=2, groups=2``, then each by itself, for
    code that does not take some of them; and each flag: a layer without bias.
    """
    numbers: dict[str, object] = {}
    flags: list[dict[str, object]] = []
    for one in list_parameters(inspect.signature(getattr(torch.nn, kind))):
        if re.search(_CHANGES_NOTHING, one.name):
            continue
        if isinstance(one.default, bool):
            flags.append({one.name: not one.default})
        elif isinstance(one.default, int):
            numbers[one.name] = one.default + 1
        elif isinstance(one.default, float):
            numbers[one.name] = _EPS if one.name == "eps" else 2 * one.default
    alone = [{name: value} for name, value in numbers.items()]
    return [*([numbers] if len(alone) > 1 else []), *flags, *alone]
