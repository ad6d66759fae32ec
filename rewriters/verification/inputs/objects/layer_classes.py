"""Which classes of layers an annotation names, or code looks for in a model."""

from __future__ import annotations

import ast
import inspect
import re

import torch

_KINDS = 2
"""Of layers with a base in common: of images, and of sequences."""


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
