"""Several plain values in one argument: sizes, axes, the starts of spans, names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

from npufix.rewriters.verification.calls.values import Several, Spec, Value

if TYPE_CHECKING:
    from npufix.rewriters.verification.inputs.source.parameters import Parameter
    from npufix.rewriters.verification.inputs.source.usage import Use

NESTED = r"(Tuple|tuple|List|list|Sequence)\[ *(typing\.)?(Tuple|tuple|List|list)\["
_SIZE = r"size|shape|resolution|hw$"
_ORDER = r"perm(ute|utation)?($|_)"
"""Axes in another order."""
_AXES = r"(^|_)(dims?|axis|axes)$"
_CONTAINER = r"(?i)\b(tuple|list|sequence|iterable)\[ *"
_PAIRS: dict[str, tuple[tuple[object, ...], ...]] = {
    "int": ((0, 2), (1, 3), (3, 5)),
    "float": ((0.5, 2.0),),
    "str": (("first", "second"),),
}


def guess_several(parameter: Parameter, use: Use) -> list[Spec]:
    """Return several plain values, for a parameter that is annotated or used like that."""
    return _guess_axes(parameter) or _guess_listed(parameter, use) or _guess_sizes(parameter, use)


def _guess_listed(parameter: Parameter, use: Use) -> list[Spec]:
    """Return any number of values, for ``starts: list[int]`` that a loop goes through."""
    found = re.search(rf"{_CONTAINER}(int|float|str)\b", parameter.annotation)
    if found is None or (found[2] == "int" and not use.looped):
        return []
    kind: Literal["tuple", "list"] = "tuple" if found[1].lower() == "tuple" else "list"
    return [Several(tuple(map(Value, values)), kind) for values in _PAIRS[found[2]]]


def _guess_sizes(parameter: Parameter, use: Use) -> list[Spec]:
    """Return several numbers, for ``size: Tuple[int, int]`` and ``h, w = size``."""
    numbers = re.search(r"(?i)\b(tuple|list|sequence)\[ *(int\b.*)\]", parameter.annotation)
    paired = use.paired and re.search(_SIZE, parameter.name.lower())
    if not numbers and (parameter.annotation or not paired):
        return []
    count = max(2, len(re.findall(r"\bint\b", numbers[2]))) if numbers else 2
    made: list[Spec] = [Value(tuple(sizes[:count])) for sizes in ((3, 5, 2, 4), (6, 4, 7, 3))]
    if use.length > count:  # corners, margins: small enough for windows to hold something
        made = [Value(tuple(range(1, use.length + 1))), *made]
    if re.search(NESTED, parameter.annotation):  # of several images, ``List[Tuple[int, int]]``
        return [Value(tuple(s.value for s in made if isinstance(s, Value)))]
    if re.search(_ORDER, parameter.name.lower()):
        return [*(Value((*range(n - 2), n - 1, n - 2)) for n in (3, 4, 5, 2)), *made]
    return made


def _guess_axes(parameter: Parameter) -> list[Spec]:
    """Return several axes, for ``dim: int | tuple[int, ...]``."""
    several = re.search(r"(?i)\b(tuple|list|sequence|iterable|size)\b", parameter.annotation)
    if not several or not re.search(_AXES, parameter.name.lower()):
        return []
    made = list if several[1].lower() == "list" else tuple
    return [Value(made(axes)) for axes in ((-1,), (0, 1), (-2, -1))]


def tell_apart(default: object) -> list[Spec]:
    """Return the numbers of a default, made different where some are equal.

    ``voxel_size=(0.2, 0.2)`` hides who takes the first for the second: ``(0.2, 0.225)``.
    """
    numbers = default if isinstance(default, tuple | list) else ()
    kinds = set(map(type, numbers))
    if len(kinds) != 1 or kinds.isdisjoint({int, float}) or len(set(numbers)) == len(numbers):
        return []
    whole = kinds == {int}
    apart = (n + at if whole else (n or 1.0) * (1 + at / 8) for at, n in enumerate(numbers))
    return [Value(type(default)(apart))]  # type: ignore[call-arg] # a tuple or a list
