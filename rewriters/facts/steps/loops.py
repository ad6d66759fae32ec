"""How often a line runs beside the steps of the loop that trains in the same function.

::

    for epoch in range(epochs):
        rates = {k: v.cpu() for k, v in rates.items()}  # between the steps
        for batch in loader:
            loss = model(batch).mean()  # in each step
            loss.backward()
            optimizer.step()
            if step % 100 == 0:
                log(loss.item())  # between the steps
"""

from __future__ import annotations

import ast
import re
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.graph.control_flow import SHOWS_PROGRESS
from npufix.rewriters.graph.modules.syntax import children, holds_line, last_name, nodes_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.graph.modules.names import FunctionNode

_Loop = ast.For | ast.AsyncFor | ast.While
_LATER = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda})
_TRAINS = re.compile(r"_*(\w+_)?backward(_\w+)?|_*(train|training)_(step|batch|iter)\w*")
_TRAINS_LONG = re.compile(r"_*(train|run|fit|do)_(\w+_)?epochs?")
"""What runs many steps: ``train_one_epoch(model, loader)``."""
_WORKS = re.compile(
    r"_*(\w+_)?(backward|step|act|actions?|generate|rollout)(_and_\w+)?"
    r"|_*(train|training|forward|update)_(step|batch|iter)\w*"
)
"""What takes a step, of an optimizer or of an environment: ``env.step(policy.act(x))``."""
_TELLS = re.compile(r"_*(is|log|save|get|set|should|print|end|on)_\w*step")
_NO_STEP = re.compile(r"(?i)sched|(^|[._])lr\b|prof|\bpbar|progress")
"""Whose ``step`` is no work: that of a schedule, or of a profiler."""
_COUNTS = re.compile(
    r"(?i)(^|_)(steps?|iters?|iteration|epoch|batch|update|episode|idx|round)(_|$)|^(i|n|it)$"
)
_DATA = re.compile(
    r"(?i)data|load|corpus|tokens|env(s|ironment)?$|(^|_)(batch(es)?|images?|imgs?|labels?|texts?)$"
)
_MANY = 5
_OF_TRAINING = re.compile(r"(?i)(^|_)(train(ing)?|epoch|fit|learn|main)(_|$)")


class Pace(Enum):
    """How often a line runs."""

    STEP = "in each step"
    BETWEEN = "between steps: once per epoch, or every so many steps"
    AROUND = "before or behind all steps"


class _Steps(NamedTuple):
    """The loops of a function, with what they do themselves, not in a loop further in."""

    every: tuple[_Loop, ...]
    working: frozenset[int]
    """The ``id`` of each loop, or of the function, that takes steps itself."""


def pace(function: FunctionNode, line: int) -> Pace | None:
    """Return how often a line runs, ``None`` where nothing in its function trains in a loop."""
    if _is_asked_seldom(function, line):
        return Pace.BETWEEN
    steps = _find_steps(function)
    if steps is None:
        return Pace.AROUND if _is_beside_progress(function, line) else None
    around = [s for s in steps.every if s.body[0].lineno <= line <= (s.end_lineno or line)]
    if any(id(code) in steps.working for code in (function, *around)):
        return Pace.STEP
    return Pace.BETWEEN if around else Pace.AROUND


def _is_beside_progress(function: FunctionNode, line: int) -> bool:
    """Tell whether a line runs once for a loop so long that people are shown how far it is.

    ``for start in tqdm(range(0, len(x), batch_size)):``
    """
    loops = [
        n
        for n in nodes_of(function)
        if isinstance(n, ast.For)
        and isinstance(n.iter, ast.Call)
        and SHOWS_PROGRESS.search(last_name(n.iter.func))
    ]
    return bool(loops) and not any(holds_line(loop.body, line) for loop in loops)


@lru_cache(maxsize=4)
def _find_steps(function: FunctionNode) -> _Steps | None:
    loops: list[_Loop] = []
    working: set[int] = set()
    trains = False
    todo: list[tuple[ast.AST, ast.AST]] = [(s, function) for s in function.body]
    for node, owner in todo:  # grows
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            in_loop = owner is not function
            trains = trains or (in_loop and _is_training(node, name))
            if _WORKS.fullmatch(name) and not _TELLS.fullmatch(name) and not _is_schedule(node):
                working.add(id(owner))
        if isinstance(node, ast.For | ast.AsyncFor | ast.While):
            loops.append(node)
            head = {id(n) for n in (getattr(node, "iter", None), *node.orelse)}
            todo += [(n, owner if id(n) in head else node) for n in children(node)]
        elif type(node) not in _LATER:
            todo += [(n, owner) for n in children(node)]
    return _Steps(tuple(loops), frozenset(working)) if trains else None


def reads_data(function: FunctionNode) -> bool:
    """Tell whether a script reads what it trains on, or nothing trains in it.

    Below ``if __name__ == "__main__":`` a module may try itself on random numbers:
    ``for step in range(10): net(torch.randn(2, 4).cuda()).sum().backward()``.
    """
    names = {last_name(n) for n in nodes_of(function) if isinstance(n, ast.Name | ast.Attribute)}
    return _find_steps(function) is None or any(map(_DATA.search, names))


def _is_training(call: ast.Call, name: str) -> bool:
    """Tell whether a call trains: one step, or an epoch as ``train(model, loader)`` does."""
    if name == "train":  # ``model.train()`` switches dropout on
        return any(not isinstance(given, ast.Constant) for given in call.args)
    return _TRAINS.fullmatch(name) is not None or _TRAINS_LONG.fullmatch(name) is not None


def _is_schedule(call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return owner is not None and _NO_STEP.search(ast.unparse(owner)) is not None


def _is_asked_seldom(function: FunctionNode, line: int) -> bool:
    """Tell whether a test lets a line run every so many steps: ``if step % 100 == 0``.

    Not so what it does is a step: ``if step % accumulate == 0: optimizer.step()``.
    """
    return any(
        holds_line(node.body, line)
        and any(map(_is_every_so_many, ast.walk(node.test)))
        and not any(_is_work(inner) for s in node.body for inner in ast.walk(s))
        for node in _list_tests(function)
    )


@lru_cache(maxsize=4)
def _list_tests(function: FunctionNode) -> tuple[ast.If, ...]:
    """Return the tests of a function that trains."""
    if not _OF_TRAINING.search(function.name) and not any(map(_is_work, nodes_of(function))):
        return ()
    return tuple(n for n in nodes_of(function) if isinstance(n, ast.If))


def _is_work(node: ast.AST) -> bool:
    name = last_name(node.func) if isinstance(node, ast.Call) else ""
    return _TRAINS.fullmatch(name) is not None or (name == "step" and not _is_schedule(node))  # type: ignore[arg-type]


def _is_every_so_many(node: ast.AST) -> bool:
    """Tell whether code asks for one of many steps: ``(step + 1) % every == 0``."""
    match node:
        case ast.Compare(ast.BinOp(count, ast.Mod(), every), [ast.Eq()]):
            pass
        case ast.UnaryOp(ast.Not(), ast.BinOp(count, ast.Mod(), every)):
            pass
        case _:
            return False
    often = isinstance(every, ast.Constant) and isinstance(every.value, int) and every.value < _MANY
    return not often and any(map(_COUNTS.search, _list_terms(count)))


def _list_terms(code: ast.expr) -> Iterator[str]:
    """Yield the names that are added up: not ``batch`` of ``batch.shape[0]``."""
    if isinstance(code, ast.BinOp):
        yield from (*_list_terms(code.left), *_list_terms(code.right))
    else:
        yield last_name(code)
