"""The lines that calls of the original run."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.coverage import (
    LinesToCover,
    Place,
    find_blocks,
    find_making,
    trace_lines,
)
from npufix.rewriters.verification.calls.device import (
    compute_on_device,
    device_failure,
    scale_timeout,
    wait_for,
)
from npufix.rewriters.verification.calls.observe import CALL_S, observe
from npufix.rewriters.verification.calls.surroundings import seed_everything
from npufix.rewriters.verification.calls.values import Spec, Tensor, list_kinds
from npufix.rewriters.verification.inputs.objects.incomplete.late import find_late
from npufix.rewriters.verification.inputs.objects.state import read_state
from npufix.rewriters.verification.inputs.source.parameters import find_said_kind, is_default
from npufix.rewriters.verification.inputs.target import Assignment, CallCase
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call
from npufix.rewriters.verification.verdict import BackendLimitError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.inputs.recipes import Recipe
    from npufix.rewriters.verification.inputs.search_result import SearchResult
    from npufix.rewriters.verification.inputs.target import Keeps, Target

_FURTHER_S = 1.0
_FEW = 5


@runs_with_target
def trace_call(
    target: Target, case: CallCase, found: SearchResult | None = None, times: int = 1
) -> set[Place] | None:
    """Return the lines of the module that this call runs, so many times; None if it raises."""
    with compute_on_device(on_npu=target.on_npu), trace_lines(target.loaded.filename) as lines:

        def call() -> object:
            dtype = next(iter(case.dtypes), torch.float32)
            prepared = target.prepare(case, dtype, again=found is not None)
            seed_everything(case.seed)
            if target.applied is not None:  # its gradient is a part of what it runs
                return observe(prepared, "leaf", case.seed).or_raise()
            if prepared.earlier is not None:
                prepared.call(prepared.earlier)
            with torch.set_grad_enabled(not case.without_gradients):
                for _ in range(times - 1):
                    prepared.call(prepared.arguments)
                return wait_for(prepared.call(prepared.arguments))

        outcome = try_call(call, scale_timeout(CALL_S))
    failed = device_failure(outcome.error) if target.on_npu else ""
    if failed:
        raise BackendLimitError(failed)
    if found is not None:
        if outcome.error:
            owner = "" if target.owner is None else target.owner.__name__
            found.note(outcome.error, owner, case.assignment)
            found.expired += outcome.expired
        else:
            found.ran = True
            target.discard_object()
    return None if outcome.error else lines


@runs_with_target
def trace_making(target: Target, recipe: Recipe | None) -> set[Place]:
    """Return the lines of the module that run where an object is made, if one is."""
    if recipe is None or recipe.attributes is not None or target.owner is None:
        return set()
    owner = target.owner
    with trace_lines(target.loaded.filename) as lines, target.world():
        made = try_call(lambda: recipe.build(owner, target.loaded.find), scale_timeout(CALL_S))
    return set() if made.error else lines


def list_late(target: Target, recipe: Recipe | None) -> Iterator[Recipe]:
    """Yield how to make an object with what others set after ``__init__``."""
    owner, find = target.owner, target.loaded.find
    if recipe is None or owner is None or issubclass(owner, torch.optim.Optimizer):
        return
    bare = recipe if recipe.attributes is None else replace(recipe, attributes=())
    made = try_call(lambda: bare.build(owner, find), scale_timeout(CALL_S)).value
    for late in find_late(owner, target.name, made):
        yield replace(bare, late=late)


def reach_making(
    target: Target, job: Job, options: Iterable[Recipe | None], further: Iterator[Recipe]
) -> list[Recipe]:
    """Return what else to make, until what has changed of ``__init__`` has run."""
    owner = job.qualname.rpartition(".")[0]
    lines = find_making(job.original, job.patched, owner)
    others = find_making(job.patched, job.original, owner)
    if not (lines or others):
        return []
    alike = find_blocks(job.patched, others)
    wanted = LinesToCover(job.original, target.loaded.filename, lines, alike)
    ran: set[Place] = set()
    more: list[Recipe] = []
    for option in options:
        ran |= trace_making(target, option)
    for option in further if wanted.unreached(ran) else ():
        reached = trace_making(target, option)
        if wanted.reached(ran | reached) > wanted.reached(ran):
            more.append(option)
            ran |= reached
        if not wanted.unreached(ran):
            break
    return more


def add_floats(target: Target, wanted: LinesToCover, found: SearchResult, keeps: Keeps) -> None:
    """Add a call with floating numbers, where integers were given that may be either."""
    if any("int" not in list_kinds(a.specs.values()) for a in found.assignments):
        return
    whole = {p.name for p in target.parameters() if find_said_kind(p.annotation) == "int"}
    for assignment in found.assignments[:2]:
        specs = {
            n: Tensor(s.shape)
            if isinstance(s, Tensor) and s.kind == "int" and n not in whole
            else s
            for n, s in assignment.specs.items()
        }
        if specs == assignment.specs:
            return
        twin = CallCase(Assignment(assignment.recipe, specs))
        ran = trace_call(target, twin) or set()
        if wanted.reached(ran) and keeps(twin):
            found.assignments.append(twin.assignment)
            return


def pass_all(target: Target, wanted: LinesToCover, found: SearchResult, keeps: Keeps) -> None:
    """Add a call with all options that others pass one by one, as a mask and a limit."""
    alike = [a for a in found.assignments if a.recipe == found.assignments[0].recipe]
    given = [{n: s for n, s in a.specs.items() if not is_default(s)} for a in alike]
    whole: dict[str, Spec] = {}
    for passed in given:
        whole = {**passed, **whole}
    if len(whole) <= max(map(len, given), default=0):
        return
    # Tensors that go together are those of one call: a mask of another has another shape.
    for assignment, passed in zip(alike[:_FEW], given, strict=False):
        specs = {n: passed.get(n, whole.get(n, s)) for n, s in assignment.specs.items()}
        case = CallCase(replace(assignment, specs=specs))
        ran = trace_call(target, case)
        if ran is not None and keeps(case):
            found.assignments.append(case.assignment)
            found.reached |= wanted.reached(ran)
            return


@runs_with_target
def read_made(target: Target, recipe: Recipe | None, seed: int) -> dict[str, torch.Tensor]:
    """Return the weights and buffers of a module as its class makes them; none if it does not."""
    if recipe is None or recipe.attributes is not None or not target.has_modes:
        return {}
    owner = target.owner or object
    with target.world():
        made = try_call(
            lambda: recipe.build(owner, target.loaded.find, seed, as_made=True),
            scale_timeout(CALL_S),
        ).value
    if not isinstance(made, torch.nn.Module):
        return {}
    named = (*made.named_parameters(), *made.named_buffers())
    return {f"self.{name}": value.detach() for name, value in named}


@runs_with_target
def read_ties(target: Target, recipe: Recipe | None) -> dict[str, frozenset[str]]:
    """Return which arguments of ``__init__`` share memory with what an object holds, by name."""
    if recipe is None or recipe.attributes is not None or target.owner is None:
        return {}
    owner, find = recipe.owner(target.owner, target.loaded.find), target.loaded.find

    def make() -> tuple[object, dict[str, object]]:
        given = recipe.given(find)
        return owner(**given), given

    with target.world():
        made = try_call(make, scale_timeout(CALL_S)).value
    if not isinstance(made, tuple):
        return {}
    holders: dict[int, set[str]] = {}
    for name, value in made[1].items():
        for tensor in (value, *read_state(value, name).values()):
            for place in _places(tensor):
                holders.setdefault(place, set()).add(name)
    held = read_state(made[0], "self").items()
    return {n: frozenset().union(*(holders.get(p, ()) for p in _places(v))) for n, v in held}


def _places(value: object) -> list[int]:
    """Return where the memory of a tensor is, if this is one and has some."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or not value.numel():
        return []
    return [value.untyped_storage().data_ptr()]


@runs_with_target
def trace_cases(
    target: Target, cases: Sequence[CallCase], wanted: LinesToCover, ran: set[Place]
) -> set[Place]:
    """Return the lines that have run once these calls have, as far as all of them are wanted."""
    ran, deadline = set(ran), time.process_time() + scale_timeout(_FURTHER_S)
    for case in cases:
        if not wanted.unreached(ran) or time.process_time() > deadline:
            break
        ran |= trace_call(target, case) or set()
    return ran


def find_reaching(target: Target, wanted: LinesToCover, found: SearchResult) -> Recipe | None:
    """Return the first way to make the object by which the lines run, not tests above alone."""
    ran = ((a.recipe, trace_call(target, CallCase(a))) for a in found.assignments)
    reached = ((made, wanted.reached(places or ())) for made, places in ran)
    return next((made for made, of in reached if any(type(p) is int for p in of)), None)
