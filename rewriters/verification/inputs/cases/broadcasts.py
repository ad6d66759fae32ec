"""Calls of a product in which one operand has a single row for all rows of the other.

One query for all keys of ``einsum("nbh,bh->nb", keys, query)`` and of ``q @ k.mT``: torch spreads
it, and a product of flattened batches does not.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.syntax import parse_once
from npufix.rewriters.verification.calls.values import Tensor
from npufix.rewriters.verification.inputs.cases.axes import set_sizes
from npufix.rewriters.verification.inputs.cases.trials import with_specs
from npufix.rewriters.verification.inputs.source.operands import list_lettered, list_spread
from npufix.rewriters.verification.inputs.source.slicing import find_changed
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.inputs.target import CallCase

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.inputs.cases.axes import Accepts, Axis, Place
    from npufix.rewriters.verification.inputs.target import Assignment

_PRODUCT = re.compile(r"\beinsum\(|\w\)? @ |\bmatmul\(|\bbmm\(")
_MATRIX = 2
"""The last dimensions of an operand, which are those of the product itself."""


def list_single(
    one: Assignment, axes: Sequence[Axis], accepts: Accepts, job: Job
) -> Iterator[CallCase]:
    """Yield calls with one row in a tensor for many in the other, where a product has changed."""
    if not job.by_hand or not any(map(any, find_changed(_PRODUCT, job))):
        return
    function = find_function(parse_once(job.original), job.qualname)
    names = {name for name, spec in one.specs.items() if isinstance(spec, Tensor)}
    letters = dict(list_lettered(function, names)) if function is not None else {}
    spread = set(list_spread(function, names)) if function is not None else set()

    def is_batch(place: Place) -> bool:
        spec = one.specs[place.name]
        if place.axis is None or not isinstance(spec, Tensor):
            return False
        if len(letters.get(place.name, ())) == len(spec.shape):
            return letters[place.name][place.axis] in spread
        return place.axis < len(spec.shape) - _MATRIX

    for axis in axes:
        places = sorted(filter(is_batch, axis.places), key=str)
        if len({place.name for place in axis.places}) > 1 and len(places) == len(axis.places):
            for name in dict.fromkeys(place.name for place in places):
                made = set_sizes(one.specs, [p for p in places if p.name == name], 1)
                if accepts(made):
                    yield CallCase(with_specs(one, **made), spread=True)
