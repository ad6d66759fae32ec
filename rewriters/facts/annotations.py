"""What an argument is said to be: by its annotation, or by the docstring."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.names import FunctionNode

if TYPE_CHECKING:
    from npufix.rewriters.graph.dataflow import FunctionFlow

_SAID = re.compile(
    r"^[ \t]*(\w+)[ \t]*(?:\(((?:[^()\n]|\([^()\n]*\))*)\)[ \t]*:|:[ \t]+([^\n]+)$)", re.MULTILINE
)
"""``mask (Tensor): ...`` of a docstring, and ``mask : Tensor``."""
_BESIDE_CLASS = re.compile(
    r"[`~]|:\w+:|,?\s*(optional|defaults?\b.*)$|,?\s*(of|with|in)?\s+(shape|size)\b.*$|(?<=Tensor)\[.*\]$"
    r"|\s*(\bor|\|)\s*None$"
)
_CLASS_SAID = re.compile(
    r"(torch\.)?(cuda\.)?(Bool|Byte|Double|Float|Half|Int|Long)?Tensor|tensor|(np|numpy)\.ndarray"
)
_SHAPED = re.compile(
    r"(?:Optional\[)?(?:\w+\.)?(Bool|Float\d*|U?Int\d*|Num|Real|Shaped)"
    r"\[(?:torch\.)?Tensor, '([^']*)'\]\]?(?: \| None)?"
)
"""``Bool[Tensor, "b n"]`` of jaxtyping, with the names of the dimensions."""


def annotation(flow: FunctionFlow, param: str) -> str:
    """Return the annotation of a parameter as text, empty if it has none.

    Where it is missing the docstring may say that it is a tensor, or an array.
    """
    said = _annotated(flow, param)
    if (shaped := _SHAPED.fullmatch(said)) is not None:
        return "torch.BoolTensor" if shaped[1] == "Bool" else "torch.Tensor"
    return said or _list_said(flow.function).get(param, "")


def _annotated(flow: FunctionFlow, param: str) -> str:
    spec = flow.function.args
    for arg in (*spec.posonlyargs, *spec.args, *spec.kwonlyargs):
        if arg.arg == param and arg.annotation is not None:
            return ast.unparse(arg.annotation).strip("'\"")
    return ""


def annotated_rank(flow: FunctionFlow, param: str) -> int | None:
    """Return how many dimensions an annotation names: 2 for ``Float[Tensor, "b n"]``."""
    shaped = _SHAPED.fullmatch(_annotated(flow, param))
    names = ["..."] if shaped is None else shaped[2].split()
    return None if any(name.startswith(("...", "*", "#*")) for name in names) else len(names)


@lru_cache(maxsize=64)
def _list_said(function: FunctionNode) -> dict[str, str]:
    """Return of which arguments a docstring says the class: ``mask (~torch.BoolTensor): ...``.

    Not so where it names several, ``x (Tensor or list)``, or says it twice.
    """
    text = ast.get_docstring(function, clean=False) if isinstance(function, FunctionNode) else ""
    found: dict[str, str] = {}
    for name, google, numpy in _SAID.findall(text or ""):
        said = google or numpy
        while (short := _BESIDE_CLASS.sub("", said).strip()) != said:
            said = short
        said = "Tensor" if said == "tensor" else said
        if found.setdefault(name, said) != said:
            found[name] = ""
    return {name: said for name, said in found.items() if _CLASS_SAID.fullmatch(said)}
