"""Tests of whether a loss is finite, for which the host waits in every step."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.of_host import is_named_loss, is_of_host
from npufix.rewriters.edit.statements.host.seldom import is_seldom
from npufix.rewriters.edit.statements.host.sentences import FOR_FINITE
from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.graph.modules.syntax import last_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

LEARNS = re.compile(r"(?i)(^|_)(loss(es)?|train|training|batch_metrics|step)(_|$)")
"""A function that takes a step of training, by its name."""
FINITE = frozenset({"isfinite", "isinf", "isnan"})
_FOR_SKIP = (
    "the host waits in every step to know whether it is left out: look every N steps, or go on and "
    "leave it out on the device, with gradients of zero where they are not finite: "
    "p.grad.nan_to_num_(0, 0, 0) of each parameter before optimizer.step(), which still moves by "
    "its momentum"
)
_LOSSES = re.compile(r"sum\(\w*loss\w*\.values\(\)\)|\bclip_grad_norm_\(")
"""What is a tensor, though nothing tells: the losses of a dictionary, the norm of gradients."""


def find_finite_tests(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``if not math.isfinite(loss):`` of a tensor, which Python makes a number of.

    So it does of ``if torch.isnan(loss): continue``, where a step is left out.
    """
    for node in here.nodes:
        match node:
            case ast.If(test, [*_, ast.Continue() | ast.Return(None | ast.Constant(None))], []):
                if _asks_loss(here, test) and not is_seldom(here, test):
                    yield Proposal(node, _FOR_SKIP)
            case ast.Call(ast.Attribute(ast.Name("math"), name), [ast.Name() as tensor], []):
                if name in FINITE and _is_loss(here, tensor) and stops(here, node):
                    yield Proposal(node, FOR_FINITE)


def _asks_loss(here: Surroundings, test: ast.expr) -> bool:
    """Tell whether a training step asks torch whether its loss is finite: ``torch.isnan(loss)``."""
    if here.loop_of(test) is None and LEARNS.search(here.flow.function.name) is None:
        return False
    for call in ast.walk(test):
        match call:
            case ast.Call(ast.Attribute(owner, name) as function, given, []) if name in FINITE:
                by_torch = here.flow.names.dotted(function) == f"torch.{name}"
                asked = given[0] if by_torch and len(given) == 1 else owner
                named = isinstance(asked, ast.Name) and is_named_loss(asked)
                plain = by_torch or (not given and here.is_tensor(asked) is True)
                if named and plain and not is_of_host(here, asked):
                    return True
    return False


def _is_loss(here: Surroundings, code: ast.Name) -> bool:
    """Tell whether a name is a tensor in a loop, known as such or by what it is made of."""
    value = here.value(code)
    if here.loop_of(code) is None or (value is not None and value.op == "item"):
        return False
    bound = [
        n
        for n in here.nodes
        if isinstance(n, ast.Assign) and code.id in map(ast.unparse, n.targets)
    ]
    of_losses = bool(bound) and all(_LOSSES.match(here.text(n.value)) for n in bound)
    return here.is_tensor(code) is True or of_losses


def stops(here: Surroundings, code: ast.AST) -> bool:
    """Tell whether a test ends the program, or says that something is wrong: no step is skipped."""
    inner = code
    for outer in here.around(code):
        if isinstance(outer, ast.Assert):
            return True
        if isinstance(outer, ast.If):
            ends = [n for s in outer.body for n in ast.walk(s)]
            return inner is outer.test and not any(
                isinstance(n, (ast.Continue, ast.Break, ast.Return)) for n in ends
            )
        inner = outer
    return False


def asks_finite(here: Surroundings, code: ast.AST) -> bool:
    """Tell whether it is asked whether a number is finite, where that only stops the program."""
    outer = here.parents.get(id(code))
    return isinstance(outer, ast.Call) and last_name(outer.func) in FINITE and stops(here, outer)
