"""Descriptions of arguments, and the tensors they stand for.

A case is a description: every run makes its tensors afresh from names and seeds, so no run can
see what another one wrote.
"""

from __future__ import annotations

import math
import zlib
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch

from npufix.rewriters.verification.calls.floats import cluster, draw_floats, draw_shares, stretch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Kind: TypeAlias = Literal[
    "float", "unit", "int", "bool", "binary", "additive", "box", "complex", "rotation"
]
Flavour: TypeAlias = Literal[
    "ordinary",
    "tiny rows",
    "zeros",
    "large",
    "far from zero",
    "far below",
    "few values",
    "NaN and Inf",
    "NaN and large",
    "NaN",
    "Inf",
    "strided",
    "negative",
    "all true",
    "all false",
    "whole rows",
    "highest",
    "in order",
    "overlapping",
]
_SELDOM = frozenset({"NaN and large", "NaN", "Inf", "in order", "overlapping"})
FLAVOURS: tuple[Flavour, ...] = tuple(one for one in get_args(Flavour) if one not in _SELDOM)
SPECIAL: frozenset[Flavour] = frozenset({"NaN and Inf", "NaN", "Inf"})
LARGE: Flavour = "NaN and large"
"""What stands for "NaN and Inf" where it matters what a gradient tends to."""
FAR: frozenset[Flavour] = frozenset({"large", "far from zero", "far below"})
"""What results can be compared for, and gradients cannot: they are made of rounding there."""
_MATRIX = 2
_FLAGS = 2
"""What whole numbers are below that say yes or no."""
CLASSES = 4
"""Of what training loops are given."""
NO_CLASS = -100
"""What losses ignore, and what an index must not wrap around with."""
_VOID = 255
"""A label that names no class."""
_FEW = 16
"""Numbers below this are not worth a word."""
_SMALL, _MOST_KEPT = 1 << 14, 1 << 20
"""Elements of tensors of which many, or a few, are kept for the next run of the same case."""


@dataclass(frozen=True, slots=True)
class Promise:
    """A flag that each row of a mask has: one that is set, or, where they hide, one that is not."""

    value: bool = True
    first: bool = False
    """Whether it is always the first of them."""
    permutes: bool = False
    """Whether it is none of a flag: each row has each number below its length once."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor to be made: ``unit`` holds values in (0, 1), ``int`` values in [low, high).

    ``additive`` is a mask of 0 and the lowest number of the dtype, ``binary`` one of 0.0 and 1.0;
    neither takes a gradient. The halves of a ``box`` are its lower and its upper corner, where they
    overlap within a few of ``high``; a ``rotation`` is of ``complex`` numbers of the magnitude one.
    """

    shape: tuple[int, ...]
    kind: Kind = "float"
    high: int = 2
    dtype: torch.dtype | None = None
    """A dtype of its own; None: that of the call, and int64 for whole numbers."""
    low: int = 0
    constant: bool = False
    """Whether it takes no gradient, though it could: an operator has none for it."""
    void: int | None = None
    """A number among its whole ones that names nothing: the label that a loss ignores. Or the last
    of its floats: the sigma with which sampling ends."""
    sound: bool = False
    """Whether its whole numbers are never negative, where those of another are."""
    promise: Promise | None = None
    """What each row of flags holds at least once."""
    rises: bool = False
    """Whether its whole numbers rise from 0: the ends of sequences that are packed; or its floats
    in each row: edges in which others are searched for."""
    pinned: tuple[int, float] | None = None
    """What all of its floats are from one place on."""

    def __str__(self) -> str:
        own = "" if self.dtype is None else f" in {str(self.dtype).removeprefix('torch.')}"
        some = f" of {self.low} to {self.high - 1}" if self.low or self.high > _FEW else ""
        some = " rising from 0" if self.rises else some
        some = " permuted" if self.promise is not None and self.promise.permutes else some
        some += "" if self.void is None else f" and {self.void}"
        ends = "" if self.void is None else f", the last {self.void}"
        ends += " rising" if self.rises else ""
        if self.pinned is not None:
            ends += f" of {self.pinned[1]:.6g}" + (", the last" if self.pinned[0] else "")
        return f"{self.kind}{list(self.shape)}{some if self.kind == 'int' else ends}{own}"

    @property
    def is_constant(self) -> bool:
        """Whether nobody asks for its gradient, though its numbers are floating."""
        return self.constant or self.kind in {"additive", "binary"}


@dataclass(frozen=True, slots=True)
class Value:
    """An argument that is no tensor."""

    value: object
    given: bool = True
    """Whether the call passes it; it leaves out a default, which a change may have changed."""

    def __hash__(self) -> int:
        """Return the same for equal ones, also of lists and dictionaries, which have none."""
        try:
            return hash((self.value, self.given))
        except TypeError:
            return hash(self.given)

    def __str__(self) -> str:
        return repr(self.value)


@dataclass(frozen=True, slots=True)
class Several:
    """A tuple or list of arguments, or with ``keys`` a dictionary."""

    items: tuple[Tensor | Value, ...]
    kind: Literal["tuple", "list", "dict"] = "tuple"
    keys: tuple[str, ...] = ()
    each: int = 0
    """How many items a part has, where it has parts: 2 for ``((k, v), (k, v))``, of two layers."""

    def __str__(self) -> str:
        if self.kind == "dict":
            pairs = zip(self.keys, self.items, strict=True)
            return "{" + ", ".join(f"{key!r}: {item}" for key, item in pairs) + "}"
        parts = (f"({', '.join(map(str, part))})" for part in self._parts(self.items))
        text = ", ".join(parts if self.each else map(str, self.items))
        return f"[{text}]" if self.kind == "list" else f"({text})"

    def _parts(self, made: Sequence[object]) -> list[tuple[object, ...]]:
        return [tuple(made[n : n + self.each]) for n in range(0, len(made), self.each or 1)]

    def without(self, key: str) -> Several:
        """Return the dictionary without one of its keys."""
        kept = [(k, i) for k, i in zip(self.keys, self.items, strict=True) if k != key]
        return Several(tuple(item for _, item in kept), "dict", tuple(k for k, _ in kept))

    def backwards(self) -> Several:
        """Return the dictionary with the same keys put in the other way round."""
        return replace(self, items=self.items[::-1], keys=self.keys[::-1])

    def collect(self, made: Sequence[object]) -> object:
        """Return what ``items`` have become as what it is."""
        if self.kind == "dict":
            return dict(zip(self.keys, made, strict=True))
        made = self._parts(made) if self.each else made
        return list(made) if self.kind == "list" else tuple(made)


@dataclass(frozen=True, slots=True)
class MadeArgument:
    """An argument that has to be constructed anew for every run, like a configuration."""

    make: Callable[..., object]
    label: str
    code: str = ""
    """The expression that makes it in a program of its own; empty if its attributes tell."""
    kind: str = ""
    """The class of the user's module that ``make`` takes, if any: each version has its own."""
    given: tuple[tuple[str, Spec], ...] | None = None
    """What an object of that class is made with; None for what is made otherwise."""
    doubled: bool = False  # whether it is a model of two such objects
    walked: bool = False
    """Whether a call gets an iterator over it, which ends once: ``model.parameters()``."""

    def __str__(self) -> str:
        return f"an iterator over {self.label}" if self.walked else self.label


def make_again(
    function: Callable[..., object], label: str, *given: object, **named: object
) -> MadeArgument:
    """Return an argument that a function or class of npufix makes, which programs import."""
    own = f"__import__({function.__module__!r}, fromlist=[''])"
    text = ", ".join([*map(repr, given), *(f"{n}={v!r}" for n, v in named.items())])
    call = f"{own}.{function.__name__}({text})"
    return MadeArgument(lambda: function(*given, **named), label, call)


class Held(dict[str, object]):
    """A batch, or what a model returns, that is read by attributes as by keys."""

    def __getattr__(self, name: str) -> object:
        """Return what is held under a name."""
        if name in self:
            return self[name]
        raise AttributeError(name)

    def to(self, *_given: object, **_named: object) -> Held:
        """Return the same: everything is where it is wanted."""
        return self


class Batches(list[object]):
    """What a training loop goes through, with what it asks of a loader."""

    rows = 0
    """Of all batches together."""
    first: Sequence[object] = ()
    """Those of epoch 0, once there is another."""

    @property
    def dataset(self) -> range:
        """What has as many elements as there are rows."""
        return range(self.rows)

    @property
    def sampler(self) -> Batches:
        """What is told the number of each pass."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Have other numbers in each of four epochs: a score rises and falls from one to the next.

        Every other one has floats with the other sign, and each the next class for every label.
        """
        self.first = self.first or list(self)
        self[:] = [_later(batch, epoch) for batch in self.first]


def _later(value: object, epochs: int) -> object:
    if not isinstance(value, torch.Tensor):
        return map_items(value, lambda item: _later(item, epochs))
    if value.is_floating_point():
        return -value if epochs % 2 else value
    void = (value < 0) | (value == _VOID)
    named = value[~void]
    if not named.numel() or not 1 < named.max() < CLASSES:  # a mask stays, and so do tokens
        return value
    return torch.where(void, value, (value + epochs) % CLASSES)


Spec: TypeAlias = Tensor | Value | Several | MadeArgument
Find: TypeAlias = "Callable[[str], object]"


def find_nothing(_name: str) -> object:
    """Say that a module defines nothing."""
    return None


def seed_generator(*seeds: object) -> torch.Generator:
    """Return a generator seeded by names, the same in every process."""
    return torch.Generator().manual_seed(zlib.crc32(repr(seeds).encode()))


def materialise(  # noqa: PLR0913 - what one call consists of
    specs: Mapping[str, Spec],
    flavour: Flavour,
    seed: int,
    dtype: torch.dtype,
    digits: int | None = None,
    *,
    find: Find = find_nothing,
) -> dict[str, object]:
    """Make the arguments that ``specs`` describe, with so many digits if that is given.

    ``find`` returns a definition of the module that the call belongs to.
    """
    return {
        name: _shorten(spec.make(*([find(spec.kind)] if spec.kind else [])), digits)
        if isinstance(spec, MadeArgument)
        else _make(spec, name, flavour, (seed, digits), dtype)
        for name, spec in specs.items()
        if not isinstance(spec, Value) or spec.given
    }


def _shorten(value: object, digits: int | None) -> object:
    """Leave so many significant digits of every number, as far as the dtype can."""
    if digits is None:
        return value
    if isinstance(value, tuple | list | dict):
        return map_items(value, lambda item: _shorten(item, digits))
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    short = [float(f"{number:.{digits}g}") for number in value.double().flatten().tolist()]
    return value.copy_(torch.tensor(short, dtype=torch.float64).view(value.shape))


def _make(
    spec: Tensor | Value | Several,
    name: str,
    flavour: Flavour,
    drawn: tuple[int, int | None],
    dtype: torch.dtype,
) -> object:
    """Make an argument; ``drawn``: the seed, and how many digits are left."""
    if isinstance(spec, Value):
        return deepcopy(spec.value) if isinstance(spec.value, dict | list) else spec.value
    if isinstance(spec, Several):
        names = spec.keys or [f"{name}{i}" for i in range(len(spec.items))]
        items = zip(names, spec.items, strict=True)
        return spec.collect([_make(item, n, flavour, drawn, dtype) for n, item in items])
    count, given = math.prod(spec.shape), (spec, name, flavour, drawn, dtype)
    if count > _MOST_KEPT:
        return _draw_tensor(*given)
    return (_draw_once if count <= _SMALL else _draw_large_once)(*given).clone()


def _draw_tensor(
    spec: Tensor, name: str, flavour: Flavour, drawn: tuple[int, int | None], dtype: torch.dtype
) -> torch.Tensor:
    seed, digits = drawn
    flavour = "ordinary" if spec.sound and flavour in SPECIAL else flavour
    made = make_tensor(spec, flavour, seed_generator(name, seed), dtype)
    if spec.pinned is not None:
        made.view(-1)[spec.pinned[0] :] = spec.pinned[1]
    if flavour == "strided" and made.dim() >= _MATRIX:
        made = made.transpose(-1, -2).contiguous().transpose(-1, -2)
    _shorten(made, digits)
    return made


# Both versions, the original in float64 and other roundings of it run each case in turn.
_draw_once = lru_cache(maxsize=64)(_draw_tensor)
_draw_large_once = lru_cache(maxsize=4)(_draw_tensor)


def map_items(value: object, change: Callable[[object], object]) -> object:
    """Return a plain tuple, list or dictionary of what its items become; another value as it is."""
    if isinstance(value, Batches):
        changed = Batches(map(change, value))
        changed.rows, changed.first = value.rows, tuple(map(change, value.first))
        return changed
    if isinstance(value, Held):
        return Held({key: change(item) for key, item in value.items()})
    if type(value) is dict:
        return {key: change(item) for key, item in value.items()}
    if type(value) is list:
        return [change(item) for item in value]
    return tuple(map(change, value)) if type(value) is tuple else value


def make_tensor(
    spec: Tensor, flavour: Flavour, source: torch.Generator, dtype: torch.dtype
) -> torch.Tensor:
    """Make one contiguous tensor; floating values are drawn in float64 and rounded once."""
    dtype = dtype if spec.dtype is None else spec.dtype
    if spec.kind in {"bool", "binary"}:
        flags = _keep(spec, _flags(spec.shape, flavour, source), source)
        return flags.to(torch.bool if spec.kind == "bool" else dtype)
    if spec.kind == "int":
        return _keep(spec, _integers(spec, flavour, source), source).to(spec.dtype or torch.int64)
    if spec.kind == "additive":
        hidden = torch.rand(spec.shape, generator=source) < 0.5  # noqa: PLR2004 - a fair coin
        hidden[..., :1] = False  # every query sees a key, and not all see all
        hidden[..., 1:] |= spec.shape[-1] > 1 and not bool(hidden.any())
        return torch.zeros(spec.shape, dtype=dtype).masked_fill(hidden, torch.finfo(dtype).min)
    if spec.kind in {"unit", "box", "complex", "rotation"}:
        made = _draw(spec, flavour, source, dtype)
    else:
        made = draw_floats(spec.shape, flavour, source).to(dtype)
        made = made.sort(-1).values if spec.rises else made
    if spec.void is not None and made.numel():
        made.view(-1)[-1] = spec.void
    return made


def _draw(
    spec: Tensor, flavour: Flavour, source: torch.Generator, dtype: torch.dtype
) -> torch.Tensor:
    drawn = torch.rand(spec.shape, generator=source, dtype=torch.float64)
    if spec.kind == "unit":
        return draw_shares(drawn, flavour).to(dtype)
    if flavour == "overlapping" and spec.kind == "box":
        return cluster(drawn, spec.high).to(dtype)
    if spec.kind in {"complex", "rotation"}:
        arcs = (drawn * 32).floor() * (math.pi / 16) if flavour == "few values" else drawn * 6
        sizes = torch.rand(spec.shape, generator=source) * (spec.kind == "complex")
        return torch.polar(sizes + (0.5 if spec.kind == "complex" else 1.0), arcs.float())
    few = flavour == "few values"  # boxes are the same, or a half of each other
    return stretch((drawn * 2).floor() if few else drawn, float(few)).to(dtype)


def _flags(shape: tuple[int, ...], flavour: Flavour, source: torch.Generator) -> torch.Tensor:
    if flavour in {"all true", "all false"}:
        return torch.full(shape, flavour == "all true")
    drawn = torch.rand(shape, generator=source) < 0.5  # noqa: PLR2004 - a fair coin
    if flavour == "whole rows" and len(shape) and drawn.numel():
        # Of any three rows, one is all true and one all false.
        row = torch.arange(drawn[..., 0].numel()).view(*shape[:-1], 1) % 3
        drawn = (row == 0) | ((row == _MATRIX) & drawn)
    same = drawn.numel() > 1 and bool(drawn.all() or not drawn.any())
    drawn.view(-1)[-1:] ^= same  # the first six flags of a ``mask`` happen to be set
    return drawn


def _keep(spec: Tensor, flags: torch.Tensor, source: torch.Generator) -> torch.Tensor:
    """Return flags of which each row has what is promised."""
    if spec.promise is None or not flags.numel() or not flags.dim():
        return flags
    if spec.promise.permutes:
        whole = spec.kind == "int"
        return torch.rand(flags.shape, generator=source).argsort(-1) if whole else flags
    rows = flags.view(-1, flags.shape[-1])
    at = torch.randint(rows.shape[1], (len(rows), 1), generator=source)
    at = at * (not spec.promise.first)
    given = rows.bool() == spec.promise.value
    lacking = ~given.gather(1, at) & (~given.any(1, keepdim=True) | spec.promise.first)
    kept = rows.gather(1, at).masked_fill(lacking, int(spec.promise.value))
    return rows.scatter(1, at, kept).view(flags.shape)


def _integers(spec: Tensor, flavour: Flavour, source: torch.Generator) -> torch.Tensor:
    high = max(spec.high, spec.low + 1)
    if spec.rises:
        inside = torch.randperm(max(0, high - 2), generator=source)[: max(0, spec.shape[-1] - 2)]
        ends = torch.full(spec.shape, high - 1)
        ends[1 : inside.numel() + 1] = inside.sort().values + 1
        ends[:1] = 0
        return ends
    if flavour in {"all true", "all false", "whole rows"}:
        return _flags(spec.shape, flavour, source).long() * (high - 1)
    drawn = torch.randint(spec.low, high, spec.shape, generator=source)
    if flavour == "in order":  # edges of a path: (0, 1), (1, 2), (2, 3)
        steps = [torch.ones_like(drawn).cumsum(axis) - 1 for axis in range(drawn.dim())]
        drawn = spec.low + sum(steps, torch.zeros_like(drawn)) % (high - spec.low)
    if spec.void is not None and drawn.numel():
        none = torch.rand(spec.shape, generator=source) < (0.4 if flavour == "ordinary" else 1)
        none.view(-1)[0] = True
        return drawn.masked_fill(none, spec.void)
    if flavour in {"zeros", "highest"}:  # the others of as many are left out
        return torch.full_like(drawn, max(spec.low, 0) if flavour == "zeros" else high - 1)
    if flavour == "negative" and spec.high > _FLAGS and not spec.sound:
        choice = torch.rand(spec.shape, generator=source)
        return drawn.masked_fill(choice < 0.25, NO_CLASS)  # noqa: PLR2004 - a quarter of them
    return drawn


def list_tensors(spec: Spec) -> tuple[Tensor, ...]:
    """Return the tensors that an argument consists of."""
    items = spec.items if isinstance(spec, Several) else (spec,)
    return tuple(item for item in items if isinstance(item, Tensor))


def replace_tensors(spec: Spec, change: Callable[[Tensor], Tensor]) -> Spec:
    """Return the same argument with every tensor of it changed."""
    if isinstance(spec, Several):
        items = tuple(change(i) if isinstance(i, Tensor) else i for i in spec.items)
        return replace(spec, items=items)
    return change(spec) if isinstance(spec, Tensor) else spec


def resize(specs: Mapping[str, Spec], old: int, new: int) -> dict[str, Spec]:
    """Return the same arguments with every dimension ``old`` made ``new``."""

    def one(spec: Tensor) -> Tensor:
        fixed = spec.shape[-1:] if spec.kind == "box" else ()
        shape = spec.shape[: len(spec.shape) - len(fixed)]
        return replace(spec, shape=(*(new if d == old else d for d in shape), *fixed))

    return {name: replace_tensors(spec, one) for name, spec in specs.items()}


def list_dimensions(specs: Mapping[str, Spec]) -> list[int]:
    """Return the distinct dimensions of all tensors, in order of appearance."""
    every = (tensor for spec in specs.values() for tensor in list_tensors(spec))
    return list(dict.fromkeys(size for tensor in every for size in tensor.shape))


def list_kinds(specs: Iterable[Spec]) -> set[Kind]:
    """Return the kinds of tensors among arguments."""
    return {tensor.kind for spec in specs for tensor in list_tensors(spec)}
