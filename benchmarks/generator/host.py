"""What the host does around its launches: operators, as arrays, and Python functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from benchmarks.generator.run import NEST_NS
from benchmarks.generator.transformer import (
    LAYER,
    LOSS,
    PROGRAM,
    PROJECT,
    READ_LOSS,
    UPDATE,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.generator.program import Launch
    from benchmarks.generator.run import Run
    from benchmarks.generator.text import Integers

MODULES = 32
"""So many layers are different nn.Modules; then they repeat."""
_END_NS = 1_000
_OUTERMOST_NS, _SCOPE_NS, _SCOPE_END_NS, _INNERMOST_END_NS = 12_000, 1_000, 300, 3_000
_AROUND_MODEL = ("nn.Module: Model_0", "model.py(88): forward")
_AROUND_LAYER = ("nn.Module: Block_{L}", "model.py(70): forward")
ENTRY = ("train.py(201): <module>", "train.py(188): main", "train.py(120): train")
"""Python functions that run before the recording starts: their lines are those of the loop."""
_NEXT = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
_LOOP = (f"{PROJECT}/train.py(188): main", f"{PROJECT}/train.py(201): <module>")


_Made = TypeVar("_Made")


@dataclass(frozen=True)
class Operators:
    """Operators of a run, outermost first: ``place`` in the chain of ``launch``."""

    launch: Integers
    place: Integers
    kind: Integers
    """Into what ``of_each_kind`` returns."""
    start_ns: Integers
    duration_ns: Integers
    sequence: Integers


@dataclass(frozen=True)
class Call:
    """A single operator or Python function."""

    name: str
    start_ns: int
    duration_ns: int
    stack: tuple[str, ...] = ()


def operators(run: Run) -> Operators:
    """Return the operators of all launches."""
    launches, program = run.launches, run.program
    depth = program.depth[launches.code]
    at = np.repeat(np.arange(len(depth)), depth)
    place = np.arange(len(at)) - np.repeat(np.cumsum(depth) - depth, depth)
    code = launches.code[at]
    places = range(program.depth.max())
    numbered = np.array([[each.is_numbered(p) for p in places] for each in program.launches])
    first = (np.cumsum(program.depth) - program.depth)[code]
    return Operators(
        launch=at,
        place=place,
        kind=(first + place) * run.parameters.variants + run.variants(at),
        start_ns=launches.start_ns[at] + NEST_NS * place,
        duration_ns=launches.host_ns[at] - (NEST_NS + _END_NS) * place,
        sequence=np.where(numbered[code, place], launches.sequence[at], -1),
    )


def of_each_kind(run: Run, make: Callable[[Run, Launch, int, int], _Made]) -> list[_Made]:
    """Return what ``make`` makes of each launch of the program, place in its chain and variant."""
    return [
        make(run, launch, place, variant)
        for launch in run.program.launches
        for place in range(len(launch.chain))
        for variant in range(run.parameters.variants)
    ]


def step_operators(run: Run) -> Iterator[Call]:
    """Yield the operators that start no kernel: the data loader and the step itself."""
    here = (f"{PROJECT}/train.py(118): train", *_LOOP)
    there = (f"{PROJECT}/train.py(124): train", *_LOOP)
    for number, step in enumerate(run.steps if run.parameters.runtime else ()):
        yield Call(_NEXT, step.start_ns + 30_000, 390_000, here)
        if run.parameters.schedule:
            length = step.end_ns - step.start_ns
            yield Call(f"ProfilerStep#{run.step_id(number)}", step.start_ns, length, there)


@cache
def _scopes(codes: tuple[int, ...], around: tuple[str, ...]) -> list[tuple[int, int, int, str]]:
    """Return first and last launch, depth and name of each function around some of a layer."""
    paths = [(*around, *PROGRAM.launches[code].scopes) for code in codes]
    found = []
    for depth in range(max(map(len, paths))):
        first = 0
        for at in range(1, len(paths) + 1):
            if at == len(paths) or paths[at][: depth + 1] != paths[first][: depth + 1]:
                if len(paths[first]) > depth:
                    found.append((first, at - 1, depth, paths[first][depth]))
                first = at
    return sorted(found)


def functions(run: Run) -> Iterator[Call]:
    """Yield the Python functions that lead to the launches of the main thread."""
    start, end = run.steps[0].start_ns, run.steps[-1].end_ns
    for depth, name in enumerate(ENTRY):
        yield Call(name, start - 9_000 + depth * 1_000, end - start + 18_000 - depth * 2_000)
    deepest = len(_AROUND_MODEL)
    for rows in _layers(run):
        codes = tuple(run.launches.code[rows].tolist())
        layer = str(run.launches.layer[rows.start] % MODULES)
        around = _AROUND_LAYER if len(codes) == len(LAYER) else ()
        for first, last, depth, name in _scopes(codes, around):
            named = name.replace("{L}", layer)
            yield _around(run, rows.start + first, rows.start + last, depth + deepest, named)
    for first, last in _forwards(run):
        for level, name in enumerate(_AROUND_MODEL):
            yield _around(run, first, last, level, name)


def _around(run: Run, first: int, last: int, level: int, name: str) -> Call:
    launches = run.launches
    start = int(launches.start_ns[first]) - _OUTERMOST_NS + _SCOPE_NS * level
    end = int(launches.start_ns[last] + launches.host_ns[last])
    return Call(name, start, end + _INNERMOST_END_NS - _SCOPE_END_NS * level - start)


def _layers(run: Run) -> Iterator[slice]:
    """Yield the launches of each layer, and the others of the main thread one by one."""
    codes = {PROGRAM.launches.index(launch) for launch in (*LOSS, READ_LOSS, UPDATE)}
    first = PROGRAM.launches.index(LAYER[0])
    for at in np.flatnonzero(np.isin(run.launches.code, [first, *codes])).tolist():
        length = len(LAYER) if run.launches.code[at] == first else 1
        yield slice(at, at + length)


def _forwards(run: Run) -> Iterator[tuple[int, int]]:
    """Yield first and last launch of the model in each step."""
    of_model = np.array([launch in LAYER for launch in PROGRAM.launches])[run.launches.code]
    for step in range(run.parameters.steps):
        low, high = np.searchsorted(run.launches.step, [step, step + 1]).tolist()
        inside = np.flatnonzero(of_model[low:high])
        if len(inside):
            yield low + int(inside[0]), low + int(inside[-1])


def modules_around(launch: Launch, layer: int) -> str:
    """Return the path of nn.Modules around a launch of the main thread, "" for none."""
    if launch not in LAYER:
        return ""
    names = (*_AROUND_MODEL, *_AROUND_LAYER, *launch.scopes)
    path = [name.removeprefix("nn.Module: ") for name in names if name.startswith("nn.Module: ")]
    return "/".join(path).replace("{L}", str(layer % MODULES))
