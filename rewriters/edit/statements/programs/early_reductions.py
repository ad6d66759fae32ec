"""Gradients that are reduced over the ranks earlier than a step needs them."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.programs.clipping import is_optimizer
from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_PARALLEL = re.compile(
    r"DistributedDataParallel|\bDDP\b|FSDP|FullyShardedDataParallel|fully_shard|hsdp|fsdp"
)
_HELD_BACK = re.compile(
    r"no_sync|amp\.scale_loss|set_requires_gradient_sync|set_is_last_backward|require_backward_grad_sync"
    r"|require_grad_sync|[aA]ccelerator|[dD]eep[sS]peed"
    r"|(?m:^ *with [^\n]*(sync|micro_?batch|accumul))"
)
_HOLDS_BACK = re.compile(r"\.(no_sync|set_requires_gradient_sync|set_is_last_backward)\(")
"""What a file calls whose loops may do so through a class or a function beside them."""
_ONE_ROUND = re.compile(r"(?i)accum\w* *(== *1|<= *1|< *2)\b")
"""What is asked before a step whose gradients are needed at once."""
_ACCUMULATES = re.compile(r"(?i)accum|grad_acc|iters_to_|micro_?batch")


def find_early_reductions(here: Surroundings) -> Iterator[Proposal]:
    """Yield backward passes of accumulated gradients, each of which reduces them over the ranks."""
    if _PARALLEL.search("".join(here.lines)) is None:
        return
    held = any(_HELD_BACK.search(here.text(code)) for code in _list_own(here))
    if held or _HOLDS_BACK.search("".join(here.lines)):
        return
    for node in here.nodes:
        match node:
            case ast.Call(ast.Attribute(_, "backward")):
                loop = here.loop_of(node)
                accumulates = isinstance(loop, (ast.For, ast.While)) and _is_accumulated(loop)
                if accumulates and not any(
                    map(_ONE_ROUND.search, map(here.text, here.tests_around(node)))
                ):
                    yield Proposal(node, _ADVICE)


def _list_own(here: Surroundings) -> list[ast.stmt]:
    """Return the function, or its class with those of the module that it is made of."""
    cls, tree = here.flow.cls, here.flow.names.tree
    if cls is None or tree is None:
        return [here.flow.function]
    bases = set(map(last_name, cls.bases))
    return [cls, *(n for n in tree.body if isinstance(n, ast.ClassDef) and n.name in bases)]


_ADVICE = (
    "the gradients are reduced over all ranks in every round, and needed in the last: run forward "
    "and backward of the others below `with model.no_sync():` (DDP, FSDP1), or call "
    "model.set_requires_gradient_sync(is_last) before them (fully_shard). FSDP keeps whole "
    "gradients until then"
)


def _is_accumulated(loop: ast.For | ast.While) -> bool:
    """Tell whether a loop runs so many rounds for one step of the optimizer."""
    for node in walk(loop):
        match node:
            case ast.If(test, [*_, ast.Continue()]) if _steps(loop) and _counts_rounds(loop, test):
                return True  # if n % accumulation_steps: continue
            case ast.If(test) if _steps(node) and _counts_rounds(loop, test):
                return True
    # for _ in range(accumulation_steps): ... with the step behind it
    return (
        isinstance(loop, ast.For)
        and _ACCUMULATES.search(ast.unparse(loop.iter)) is not None
        and not _steps(loop)
    )


def _steps(node: ast.AST) -> bool:
    return any(
        isinstance(n, ast.Call) and last_name(n.func) == "step"
        and isinstance(n.func, ast.Attribute)
        and (is_optimizer(n.func.value) or any(map(is_optimizer, n.args)))
        for n in walk(node)
    )  # fmt: skip


def _counts_rounds(loop: ast.AST, test: ast.expr) -> bool:
    """Tell whether a test, or what its name is bound to in the loop, counts rounds."""
    bound = [
        n.value
        for n in walk(loop)
        if isinstance(test, ast.Name) and isinstance(n, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == test.id for t in n.targets)
    ]  # fmt: skip
    texts = [ast.unparse(code) for code in (test, *bound)]
    return any(
        _ACCUMULATES.search(text) is not None and ("%" in text or "last" in text or "==" in text)
        for text in texts
    )
