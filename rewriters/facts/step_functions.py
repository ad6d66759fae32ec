"""Functions that their annotations, or the loops in them, tell to run in each step."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.graph.modules.names import FunctionNode

_NETWORK = re.compile(r"(^|\.)(\w+_)?(model|net|network|unet|transformer|dit|denoiser|controlnet)$")
_STEPS = re.compile(r"(^|[._])scheduler\.step$")
_IN_PLACE_OF_KERNELS = frozenset({"dequant", "dequantize", "fallback", "naive", "ref", "reference"})
"""What runs where a device lacks an operator, or when weights are loaded."""
_OF_TENSORS = re.compile(r"\b(Long|Float|Bool|Int)?Tensor\b")
_COMPUTED = re.compile(
    r"^(?!.*\b(str|ndarray|Image)\b).*\b(\w*Tensor|float|[Ll]ist|[Tt]uple)\b", re.DOTALL
)
"""What is returned by those who compute, not by those who print, plot or save."""


def computes(function: FunctionNode, words: Sequence[str]) -> bool:
    """Tell whether a function turns tensors into tensors or numbers, as annotated.

    ``words`` are those of its name; what stands in for a kernel, or unpacks weights, is none.
    """
    given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return (
        _IN_PLACE_OF_KERNELS.isdisjoint(words)
        and function.returns is not None
        and _COMPUTED.search(ast.unparse(function.returns)) is not None
        and any(a.annotation and _OF_TENSORS.search(ast.unparse(a.annotation)) for a in given)
    )


def samples(function: FunctionNode, line: int = 0) -> bool:
    """Tell whether a function has a loop over the steps of a sample, around a line if given.

    Each round calls a network and a scheduler: ``x = self.scheduler.step(self.unet(x, t), t, x)``.
    """
    for loop in walk(function):
        if not isinstance(loop, ast.For) or not (
            not line or loop.body[0].lineno <= line <= (loop.end_lineno or line)
        ):
            continue
        calls = [ast.unparse(n.func) for n in walk(*loop.body) if isinstance(n, ast.Call)]
        if any(map(_STEPS.search, calls)) and any(map(_NETWORK.search, calls)):
            return True
    return False


def trains(function: FunctionNode, line: int = 0) -> bool:
    """Tell whether a function has a loop with ``loss.backward()``, around a line if given."""
    loops = [n for n in walk(function) if isinstance(n, ast.For | ast.While)]
    return any(
        (not line or loop.body[0].lineno <= line <= (loop.end_lineno or line))
        and any(
            isinstance(n, ast.Call) and last_name(n.func) == "backward" for n in walk(*loop.body)
        )
        for loop in loops
    )


def knows_device(cls: ast.ClassDef) -> bool:
    """Tell whether a class says where it computes: who proposes plans does so on the host."""
    held = (n for n in ast.walk(cls) if isinstance(n, ast.Attribute | ast.keyword | ast.arg))
    return any("device" in {getattr(n, "attr", ""), getattr(n, "arg", "")} for n in held)
