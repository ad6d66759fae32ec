"""Calls with other sizes, where the original refuses those of all that were tried.

``torch.cat([skip, F.interpolate(x, scale_factor=2)], 1)`` wants ``skip`` twice as high and as wide
as ``x``, of which no text says anything: "Sizes of tensors must match except in dimension 1.
Expected size 8 but got size 16".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.verification.calls.values import Spec, Tensor, list_tensors
from npufix.rewriters.verification.inputs.search_result import read_sizes
from npufix.rewriters.verification.inputs.target import Assignment

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import TypeAlias

    from npufix.rewriters.verification.inputs.search_result import SearchResult

    Refused: TypeAlias = tuple[Assignment, str]
    """A call, and what it has raised."""

_MOST_EACH = 16
"""Calls that are made of one."""
_MOST_ALIKE = 2
"""Calls that are begun with of those whose tensors have as many dimensions."""
_MOST_OBJECTS = 3


def group_refused(found: SearchResult) -> list[list[Refused]]:
    """Return calls that were refused by the object that they are made on, the likeliest first."""
    groups: dict[str, list[Refused]] = {}
    for one in found.refused:
        groups.setdefault(str(one[0].recipe), []).append(one)
    return [*groups.values()][:_MOST_OBJECTS]


def change_sizes(found: SearchResult, refused: Iterable[Refused]) -> Iterator[Assignment]:
    """Yield calls that were refused, each with one size as the refusal asks for it.

    Whoever makes them adds to ``found.refused`` what is refused again, of which the next is made.
    A layer over ``torch.cat([x, y, x - y], -1)`` is made three times as wide as ``x`` instead.
    """
    seen, alike = set[str](), Counter[tuple[int, ...]]()
    for begin in refused:
        specs = begin[0].specs.values()
        ranks = tuple(len(tensor.shape) for spec in specs for tensor in list_tensors(spec))
        alike[ranks] += 1
        left, todo = _MOST_EACH * (alike[ranks] <= _MOST_ALIKE), [begin]
        while todo and left:
            assignment, error = todo.pop()
            for changed in _change_sizes(assignment.specs, error):
                mark = str(sorted((name, str(spec)) for name, spec in changed.items()))
                if mark not in seen and left:
                    seen.add(mark)
                    left -= 1
                    found.refused.clear()
                    yield Assignment(assignment.recipe, changed)
                    todo += found.refused


def _change_sizes(specs: Mapping[str, Spec], error: str) -> Iterator[dict[str, Spec]]:
    sizes = read_sizes(error)
    for old, new in (sizes, sizes[::-1]) if sizes is not None else ():
        for name, spec in specs.items():
            shape = spec.shape if isinstance(spec, Tensor) and spec.kind != "box" else ()
            for axis, size in enumerate(shape):
                if size == old and isinstance(spec, Tensor):
                    changed = (*shape[:axis], new, *shape[axis + 1 :])
                    yield {**specs, name: replace(spec, shape=changed)}
