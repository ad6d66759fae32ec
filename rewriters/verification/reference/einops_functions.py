"""A stand-in for einops where it is not installed: what its patterns say, in torch.

``rearrange(x, "b (h w) c -> b c h w", h=4)``: an axis is split into what stands in brackets, what
has names is brought into the order of the other side, and what stands in brackets there is joined.
"""

from __future__ import annotations

import importlib.machinery
import math
import re
import string
import types
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ANY = "..."
_JOINED = "(...)"
_ONE = "1"
_REDUCTIONS: dict[str, Callable[..., Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "max": torch.amax,
    "min": torch.amin,
}
_ONE_BY_ONE: dict[str, Callable[..., Tensor]] = {
    "prod": torch.prod,
    "any": torch.any,
    "all": torch.all,
}
"""What torch reduces along one axis at a time."""


class EinopsError(RuntimeError):
    """A pattern does not fit a tensor."""


def _read_side(text: str) -> list[list[str]]:
    """Return the axes of one side, each as what it is joined of: ``[["b"], ["h", "w"]]``."""
    groups: list[list[str]] = []
    inside = False
    for word in re.findall(r"\.\.\.|…|\w+|\S", text):
        if word in {"(", ")"}:
            if inside is (word == "("):
                raise EinopsError(f"the brackets of {text!r} do not fit")
            inside = not inside
            groups += [[]] if inside else []
            continue
        dots = word in {_ANY, "…"}
        if not dots and word != _ONE and not word.isidentifier():
            raise EinopsError(f"{word!r} is no axis")
        named = [] if word == _ONE else [_JOINED if dots and inside else _ANY if dots else word]
        if inside:
            groups[-1] += named
        else:
            groups.append(named)
    if inside:
        raise EinopsError(f"the brackets of {text!r} do not fit")
    return groups


def _spread(groups: list[list[str]], count: int) -> list[list[str]]:
    """Return axes with as many in place of the three dots."""
    names = [f"{_ANY}{n}" for n in range(count)]
    found: list[list[str]] = []
    for group in groups:
        if group == [_ANY]:
            found += [[name] for name in names]
        else:
            found.append([n for part in group for n in (names if part == _JOINED else [part])])
    return found


def _split_sizes(
    groups: list[list[str]], shape: Sequence[int], given: Mapping[str, int]
) -> dict[str, int]:
    """Return how long each named axis is."""
    sizes: dict[str, int] = {}
    for group, size in zip(groups, shape, strict=True):
        unknown = [name for name in group if name not in given]
        known = math.prod(int(given[name]) for name in group if name in given)
        if len(unknown) > 1:
            raise EinopsError(f"the sizes of {unknown} are not known")
        rest = size // known if known else 0
        if (unknown or known != size) and rest * known * bool(unknown) != size:
            raise EinopsError(f"an axis of {size} is not split into {group} with {dict(given)}")
        sizes |= {name: int(given.get(name, rest)) for name in group}
    return sizes


def _transform(
    tensor: Tensor | Sequence[Tensor],
    pattern: str,
    reduction: str | Callable[..., Tensor],
    given: Mapping[str, int],
) -> Tensor:
    x = tensor if isinstance(tensor, torch.Tensor) else torch.stack(list(tensor))
    sides = [_read_side(side) for side in pattern.split("->")]
    if len(sides) != 2:  # noqa: PLR2004 - an arrow stands between two
        raise EinopsError(f"{pattern!r} has no two sides")
    dots = sides[0].count([_ANY])
    count = x.dim() - len(sides[0]) + dots if dots else 0
    left, right = (_spread(side, count) for side in sides)
    if count < 0 or len(left) != x.dim():
        raise EinopsError(f"{pattern!r} does not fit {x.dim()} dimensions")
    before, after = (sum(side, start=list[str]()) for side in (left, right))
    new = [name for name in after if name not in before]
    gone = [name for name in before if name not in after]
    if len({*before}) < len(before) or len({*after}) < len(after):
        raise EinopsError(f"an axis stands twice in {pattern!r}")
    if not {*given} <= {*before, *after} or not {*new} <= {*given}:
        raise EinopsError(f"{pattern!r} and its sizes {dict(given)} do not name the same")
    if (new and reduction != "repeat") or (gone and reduction in {"repeat", "rearrange"}):
        raise EinopsError(f"{pattern!r} has axes on one side alone: {[*new, *gone]}")
    sizes = _split_sizes(left, x.shape, given)
    x = _reshape(x, [sizes[name] for name in before])
    x = _reduce(x, [before.index(name) for name in gone], reduction) if gone else x
    kept = [name for name in before if name not in gone]
    x = x.permute([kept.index(name) for name in after if name in kept])
    for name in new:
        x = x.unsqueeze(after.index(name))
    sizes |= {name: int(given[name]) for name in new}
    x = x.expand([sizes[name] for name in after]) if new else x
    return _reshape(x, [math.prod(sizes[name] for name in group) for group in right])


def _reshape(x: Tensor, shape: list[int]) -> Tensor:
    return x if list(x.shape) == shape else x.reshape(shape)


def _reduce(x: Tensor, axes: list[int], reduction: str | Callable[..., Tensor]) -> Tensor:
    if not isinstance(reduction, str):
        return reduction(x, tuple(axes))
    if reduction in _REDUCTIONS:
        return _REDUCTIONS[reduction](x, dim=axes)
    if reduction not in _ONE_BY_ONE:
        raise EinopsError(f"{reduction!r} is no reduction")
    for axis in sorted(axes, reverse=True):
        x = _ONE_BY_ONE[reduction](x, dim=axis)
    return x


def rearrange(tensor: Tensor | Sequence[Tensor], pattern: str, **axes_lengths: int) -> Tensor:
    """Return a tensor, or several stacked, with its axes split, in another order, and joined."""
    return _transform(tensor, pattern, "rearrange", axes_lengths)


def reduce(
    tensor: Tensor | Sequence[Tensor],
    pattern: str,
    reduction: str | Callable[..., Tensor],
    **axes_lengths: int,
) -> Tensor:
    """Return a tensor without the axes that the right side does not have."""
    return _transform(tensor, pattern, reduction, axes_lengths)


def repeat(tensor: Tensor | Sequence[Tensor], pattern: str, **axes_lengths: int) -> Tensor:
    """Return a tensor with the axes that the left side does not have, along which it is equal."""
    return _transform(tensor, pattern, "repeat", axes_lengths)


def einsum(*tensors_and_pattern: Tensor | str) -> Tensor:
    """Return a sum of products; axes have names, not letters."""
    *tensors, pattern = tensors_and_pattern
    if not isinstance(pattern, str):
        raise TypeError("the pattern comes last")
    names = dict.fromkeys(re.findall(r"\w+", pattern))
    letters = dict(zip(names, string.ascii_letters, strict=False))
    spelt = re.sub(r"\w+", lambda found: letters[found[0]], pattern).replace(" ", "")
    return torch.einsum(spelt, *tensors)


def pack(tensors: Sequence[Tensor], pattern: str) -> tuple[Tensor, list[torch.Size]]:
    """Return tensors joined along what stands for ``*``, and their shapes there."""
    before, after = _read_ends(pattern)
    shapes, flat = list[torch.Size](), list[Tensor]()
    for tensor in tensors:
        end = tensor.dim() - after
        if end < before:
            raise EinopsError(f"{pattern!r} does not fit {tensor.dim()} dimensions")
        shapes.append(tensor.shape[before:end])
        flat.append(tensor.reshape(*tensor.shape[:before], -1, *tensor.shape[end:]))
    return torch.cat(flat, dim=before), shapes


def unpack(tensor: Tensor, packed_shapes: Sequence[Sequence[int]], pattern: str) -> list[Tensor]:
    """Return what was packed."""
    before, after = _read_ends(pattern)
    if tensor.dim() != before + 1 + after:
        raise EinopsError(f"{pattern!r} does not fit {tensor.dim()} dimensions")
    lengths = [math.prod(shape) if -1 not in shape else -1 for shape in packed_shapes]
    if -1 in lengths:
        known = sum(length for length in lengths if length != -1)
        lengths[lengths.index(-1)] = tensor.shape[before] - known
    ends = tensor.shape[:before], tensor.shape[before + 1 :]
    parts = torch.split(tensor, lengths, dim=before)
    return [
        part.reshape(*ends[0], *shape, *ends[1])
        for part, shape in zip(parts, packed_shapes, strict=True)
    ]


def _read_ends(pattern: str) -> tuple[int, int]:
    """Return how many axes stand before and after the star."""
    names = pattern.split()
    if names.count("*") != 1:
        raise EinopsError(f"{pattern!r} needs one star")
    return names.index("*"), len(names) - names.index("*") - 1


def parse_shape(x: Tensor, pattern: str) -> dict[str, int]:
    """Return the sizes of a tensor by name."""
    groups = _read_side(pattern)
    groups = _spread(groups, x.dim() - len(groups) + 1) if [_ANY] in groups else groups
    named = zip(groups, x.shape, strict=True)
    return {g[0]: size for g, size in named if g and g[0] != "_" and not g[0].startswith(_ANY)}


class Rearrange(torch.nn.Module):
    """``rearrange`` as a layer."""

    def __init__(self, pattern: str, **axes_lengths: int) -> None:
        """Take what is known before the tensor."""
        super().__init__()
        self.pattern, self.axes_lengths = pattern, axes_lengths

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as einops calls it
        """Return the tensor with other axes."""
        return rearrange(input, self.pattern, **self.axes_lengths)


class Reduce(torch.nn.Module):
    """``reduce`` as a layer."""

    def __init__(
        self, pattern: str, reduction: str | Callable[..., Tensor], **axes_lengths: int
    ) -> None:
        """Take what is known before the tensor."""
        super().__init__()
        self.pattern, self.reduction, self.axes_lengths = pattern, reduction, axes_lengths

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as einops calls it
        """Return the tensor with fewer axes."""
        return reduce(input, self.pattern, self.reduction, **self.axes_lengths)


def modules() -> dict[str, types.ModuleType]:
    """Return the modules that stand in for einops, by dotted name."""
    names = ("einops", "einops.layers", "einops.layers.torch")
    made = {name: types.ModuleType(name, "A stand-in by npufix: torch.") for name in names}
    functions = (rearrange, reduce, repeat, einsum, pack, unpack, parse_shape, EinopsError)
    made["einops"].__dict__.update({f.__name__: f for f in functions}, layers=made["einops.layers"])
    made["einops.layers"].__dict__["torch"] = made["einops.layers.torch"]
    made["einops.layers.torch"].__dict__.update(Rearrange=Rearrange, Reduce=Reduce)
    for name, module in made.items():
        module.__spec__ = importlib.machinery.ModuleSpec(name, None)
        module.__path__ = []
    return made
