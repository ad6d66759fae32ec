"""What is nobody's concern: odd sizes of which code takes halves, and large numbers in float16."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.graph.modules.syntax import parse_once, walk
from npufix.rewriters.verification.calls.values import (
    LARGE,
    SPECIAL,
    Tensor,
    Value,
    list_kinds,
    list_tensors,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.calls.observe import CallRecord
    from npufix.rewriters.verification.inputs.source.declarations import Declarations
    from npufix.rewriters.verification.judge.observe_case import CaseRun

_OVERFLOWS = r"Half\b.*\boverflow"
_RUNS_IN_HALVES = r"\b(half|float16|autocast|amp|fp16|finfo)\b"
"""What code says that is written for float16 too."""
_HALVES = 2
_BY_CHANCE = 3
"""The one odd size of which the halves meet: two beside one, which broadcasts."""
_SPECIAL = SPECIAL | {LARGE}
"""Calls whose differences are told apart from those of all others."""
_NEVER_EMPTY = r"[hwdc]|hd|height|width|(n_?|num_)?heads|(.*_)?(dim|channels?|features?|size)"
"""How texts call sizes that are never 0."""
_ROLLOUT = r"(t|time|(n_?|num_)?steps?|horizon),(n|b|batch\w*|(n_?|num_)?envs?)(,.*)?"
"""Sizes of what is recorded step by step, with all environments side by side: a step at least."""
_IMAGES = r".+,h(eight)?,w(idth)?"
"""Sizes of images and videos: of a batch of none there may be, of channels or frames never."""


def is_odd(one: CaseRun) -> bool:
    """Say whether a tensor has an odd width, which has no halves."""
    every = (t for spec in one.case.assignment.specs.values() for t in list_tensors(spec))
    return any(t.shape and t.shape[-1] % 2 for t in every)


def is_for_odd(one: CaseRun, differing: Collection[str], cases: Sequence[CaseRun]) -> bool:
    """Say whether a width that is odd makes a difference, and not what is passed beside it.

    ``delta=0.5`` may be tried for three columns alone: they are to blame if the default differs for
    three columns too, and for no even ones.
    """
    groups: dict[str, list[CaseRun]] = defaultdict(list)
    for each in cases:
        groups[_name_values(each)].append(each)
    if not all(map(is_odd, groups[_name_values(one)])):
        return True
    told = (group for group in groups.values() if not all(map(is_odd, group)))
    return any(each.label in differing for group in told for each in group)


def _name_values(one: CaseRun) -> str:
    """Return what is passed beside tensors; of whole numbers, which may be sizes, whether it is."""
    specs = one.case.assignment.specs.items()
    plain = ((n, s) for n, s in specs if isinstance(s, Value))
    return str([(n, s.given if type(s.value) is int else str(s)) for n, s in plain])


def find_reached(tree: ast.Module, qualname: str) -> ast.Module:
    """Return a function, or its class, with all that they name of their file.

    All of the file, where the function is not found.
    """
    names, found = [qualname.partition(".")[0]], list[ast.stmt]()
    known = {getattr(node, "name", ""): node for node in tree.body}
    for name in names:  # grows
        node = known.pop(name, None)
        if node is not None:
            found.append(node)
            names += [n.id for n in walk(node) if isinstance(n, ast.Name)]
    return ast.Module(found, []) if found else tree


@lru_cache(maxsize=4)
def cuts_in_two(tree: ast.Module) -> bool:
    """Say whether code cuts something into two along any axis: ``x.chunk(2, dim)``."""
    for node in walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"chunk", "split"}:
            given = [*node.args, *(k.value for k in node.keywords)]
            if any(getattr(one, "value", None) == _HALVES or is_half(one) for one in given):
                return True
    return False


def find_met_by_chance(
    cases: Sequence[CaseRun], refused: Collection[str], *, so_far: bool = False
) -> set[str]:
    """Return the refused calls of a size of three, where all others have an even size there.

    ``a, b = x.chunk(2, 1); a * b.sigmoid()`` takes x of 3 columns, as those of 2 and of 1
    broadcast, and none of 5 or 7; ``F.glu(x, 1)`` says that it wants an even size. Code that takes
    odd sizes, ``torch.cat([b, a], 1)``, takes 5 as well: then that is among the ``cases``.
    ``so_far``: more cases follow, so that even sizes need not be among them yet.
    """
    groups: dict[str, list[CaseRun]] = defaultdict(list)
    for one in (c for c in cases if c.case.flavour not in _SPECIAL):
        groups[_all_but_sizes(one)].append(one)
    found, alone = set[str](), set[str]()
    for members in groups.values():
        sizes = {one.label: _list_sizes(one) for one in members}
        told = sizes.keys() - set(refused)
        wanted = sizes.keys() & set(refused)
        for place in _list_sizes(members[0]):
            if all(sizes[label][place] % _HALVES == 0 for label in told) and all(
                sizes[label][place] == _BY_CHANCE for label in wanted
            ):
                found |= wanted if told else set()
                alone |= wanted
    # Of one axis among several, even sizes may not have been tried.
    return alone if found or so_far else set()


def _list_sizes(one: CaseRun) -> dict[tuple[str, int], int]:
    named = one.case.assignment.specs.items()
    tensors = ((n, s) for n, s in named if isinstance(s, Tensor))
    return {(n, at): size for n, s in tensors for at, size in enumerate(s.shape)}


def _all_but_sizes(one: CaseRun) -> str:
    specs = one.case.assignment.specs.items()
    look = [(n, len(s.shape) if isinstance(s, Tensor) else str(s)) for n, s in specs]
    return f"{look} {one.case.assignment.recipe}"


@lru_cache(maxsize=4)
def halves_a_width(tree: ast.Module) -> bool:
    """Say whether code takes the halves of a width, or its pairs: then it is never odd.

    ``x[..., : d // 2]`` and ``x[..., d // 2 :]``, with a name for the half too; ``x[..., ::2]`` and
    ``x[..., 1::2]``; ``x.chunk(2, -1)``.
    """
    halves = {
        target.id
        for node in walk(tree)
        if isinstance(node, ast.Assign) and is_half(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    first, second, even, uneven = set[str](), set[str](), False, False
    for node in walk(tree):
        match node:
            case ast.Subscript(slice=ast.Tuple([ast.Constant(value=e), *_, ast.Slice() as cut])):
                if e is not Ellipsis:
                    continue
                bounds = [part and ast.unparse(part) for part in (cut.lower, cut.upper, cut.step)]
                even |= bounds in ([None, None, "2"], ["0", None, "2"])
                uneven |= bounds == ["1", None, "2"]
                for found, part, other in (
                    (first, cut.upper, cut.lower),
                    (second, cut.lower, cut.upper),
                ):
                    whole = other is None or ast.unparse(other) == "0"
                    if (
                        part is not None
                        and whole
                        and (is_half(part) or ast.unparse(part) in halves)
                    ):
                        found.add(ast.unparse(part))
            case ast.Call(func=ast.Attribute(attr="chunk"), args=given, keywords=named):
                values = [ast.unparse(one) for one in (*given, *(k.value for k in named))]
                if values[-2:] == ["2", "-1"]:
                    return True
    return bool(first & second) or (even and uneven)


def is_half(code: ast.expr) -> bool:
    """Say whether this is ``n // 2``."""
    return (
        isinstance(code, ast.BinOp)
        and isinstance(code.op, ast.FloorDiv)
        and ast.unparse(code.right) == "2"
    )


def has_no_width(one: CaseRun, declared: Declarations, least: int) -> bool:
    """Say whether rows of a tensor have no columns, or images no height, as a text names it.

    ``least``: so many dimensions has what has columns. No rows may be, and no earlier keys in a
    cache; of nothing each is nobody's.
    """
    for name, spec in one.case.assignment.specs.items():
        for shape in (t.shape for t in list_tensors(spec)):
            named = [s for s in declared.of(name).shapes if len(s) == len(shape)]
            if len(shape) >= least and not shape[-1] and all(shape[:-1]):
                return True
            zeros = [n for n, size in enumerate(shape) if not size]
            joined = [",".join(s).lower() for s in named]
            if zeros == [0] and any(re.fullmatch(_ROLLOUT, sizes) for sizes in joined):
                return True
            if any(zeros) and any(re.fullmatch(_IMAGES, sizes) for sizes in joined):
                return True
            if any(re.fullmatch(_NEVER_EMPTY, s[n].lower()) for s in named for n in zeros):
                return True
    return False


def is_overflow_in_half(job: Job, one: CaseRun, after: CallRecord) -> bool:
    """Say whether a change of one's own raises in float16 alone, for a number that stood there.

    ``area[outside] = 1e8`` makes Inf of it, ``area.masked_fill(outside, 1e8)`` raises: aloud, and
    in a dtype that this number was not written for. A number that is new is the change's fault.
    """
    return bool(
        job.by_hand
        and one.dtype == torch.float16
        and re.search(_OVERFLOWS, after.error)
        and not re.search(_RUNS_IN_HALVES, job.original)
        and _list_large(job.patched, job.qualname) <= _list_large(job.original, job.qualname)
    )


def _list_large(text: str, qualname: str) -> set[float]:
    most = torch.finfo(torch.float16).max
    nodes = walk(find_reached(parse_once(text), qualname))
    values = (n.value for n in nodes if isinstance(n, ast.Constant))
    return {v for v in values if isinstance(v, int | float) and v > most}


def makes_nothing_of_one(one: CaseRun) -> bool:
    """Say whether a whole number is one, and a result without elements is made.

    Half of a width of one is nothing: ``timestep_embedding(t, dim=1)``.
    """
    specs = one.case.assignment.specs
    whole = [s.value for s in specs.values() if isinstance(s, Value) and type(s.value) is int]
    selects = list_kinds(specs.values()) & {"bool", "binary"}
    made = [t for n, t in one.original.tensors.items() if n.startswith("result")]
    nothing = any(t is not None and not t.numel() for t in made)
    return 1 in whole and nothing and not selects


def makes_nothing_of_zero(one: CaseRun) -> bool:
    """Say whether a float is zero, and all that is made of that is zero or no number.

    The Huber loss of ``delta=0`` is, whatever it is of: fused code refuses that aloud.
    """
    plain = (s.value for s in one.case.assignment.specs.values() if isinstance(s, Value))
    zero = any(type(value) is float and not value for value in plain)
    made = [t for n, t in one.original.tensors.items() if n.startswith("result") and t is not None]
    floats = [t for t in made if t.is_floating_point()]
    return zero and len(floats) == len(made) > 0 and not any(_says_something(t) for t in floats)


def _says_something(made: torch.Tensor) -> bool:
    return bool((made.isfinite() & (made != 0)).any())
