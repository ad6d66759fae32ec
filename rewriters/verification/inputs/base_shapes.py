"""Shapes that the arguments of a call may be made from."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.graph.modules.syntax import root_name, walk
from npufix.rewriters.verification.inputs.arguments import BASES
from npufix.rewriters.verification.inputs.source.parameters import CLASSES, HEADS, WIDTH, Parameter
from npufix.rewriters.verification.inputs.source.promises import list_unpacked
from npufix.rewriters.verification.inputs.source.usage import list_arguments
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.rewriters.match.recorded_call import RecordedCall
    from npufix.rewriters.verification.inputs.recipes import Recipe
    from npufix.rewriters.verification.inputs.source.declarations import Declarations, Declared
    from npufix.rewriters.verification.inputs.source.usage import Function
    from npufix.rewriters.verification.inputs.target import Target

_READ_S = 1.0
_HEADS_DIMS = 4
_LARGEST_SIDE = 64
_LARGEST_IMAGE = 256
_SIDES = (28, 32, 84, 64, 96, 224)
"""Of images that networks are written for."""
_LONG = 16
"""Positions that windows of 2 and 4, and strides of both, divide."""
_LONGEST_WINDOW = 2048
_MATRIX = 2
_POSITIONS = 3
_ROWS = (2, 3, 5)
_SIDE = 19
"""Of a signal with enough frequencies; odd, as nothing that is transformed back by itself."""


def find_widths(target: Target, recipe: Recipe | None) -> list[int]:
    """Return the sizes that the object's own tensors have: one of them is the input's width."""
    if recipe is None or target.owner is None:
        return []
    made = target.make_object(recipe)
    if not isinstance(made, torch.nn.Module):
        return []
    sizes: dict[int, None] = {}
    for parameter in made.parameters():
        sizes.update(dict.fromkeys(reversed(parameter.shape)))
    return [size for size in sizes if size > 1][:4]


def collect_base_shapes(
    recorded: Sequence[RecordedCall],
    widths: Sequence[int],
    wanted: Sequence[Parameter],
    made: object = None,
) -> list[tuple[int, ...]]:
    """Return shapes: those that were recorded, what the object's layers take, the usual ones."""
    bases = [
        shrink_recorded_shape(d) for op in recorded for d in op.dims if d and all(s > 0 for s in d)
    ]
    bases.sort(key=len, reverse=True)
    for width in widths:
        if width != WIDTH:
            bases += [(2, 3, width), (3, width)]
    split = any(re.search(HEADS, p.name.lower()) for p in wanted)
    usual = sorted(BASES, key=lambda base: len(base) != _HEADS_DIMS) if split else BASES
    layered = (
        *_of_layers(made),
        *_of_gains(made),
        *_of_caches(made),
        *_of_norms(made),
        *_of_tables(made, widths),
        *_of_classes(made),
    )
    long = [(2, _LONG, width) for width in (widths or [WIDTH])[:1]] if made is not None else []
    first = (*bases[:6], *layered, *usual, *_of_windows(wanted, made), *_of_own_images(made), *long)
    # what is broadcast beside heads, ``mask (B, S, S)``, takes no second row
    single = [(1, *base[1:]) for base in layered if len(base) >= _HEADS_DIMS and base[0] > 1]
    return list(dict.fromkeys((*first, *single)))


def of_views(function: ast.AST | None) -> list[tuple[int, ...]]:
    """Return shapes that end as what is viewed does: matrices, for ``x.view(b, n, 1, 4, 4)``."""
    found: dict[tuple[int, ...], None] = {}
    for node in walk(function) if function is not None else ():
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in {"view", "reshape"}:
            ends = [a.value for a in node.args[-_MATRIX:] if isinstance(a, ast.Constant)]
            sizes = [n for n in ends if isinstance(n, int) and n > 1]
            if len(sizes) == _MATRIX:
                found |= {(2, _POSITIONS, *sizes): None}
    return list(found)


def _of_layers(made: object) -> list[tuple[int, ...]]:
    """Return the shapes that the first layer of a network of images or sounds takes."""
    if not isinstance(made, torch.nn.Module):
        return []
    numbers = [v for v in vars(made).values() if type(v) is int] + [
        v[0] for v in vars(made).values() if isinstance(v, tuple) and v and type(v[0]) is int
    ]
    for layer in made.modules():
        channels = vars(layer).get("in_channels")
        if not isinstance(channels, int):
            continue
        # may be a property of the user's, which may raise anything
        weight = try_call(lambda layer=layer: layer.weight, _READ_S).value  # type: ignore[misc] # a default binds it
        if not isinstance(weight, torch.Tensor):
            continue
        # As large as the object says, or twice a kernel.
        least = max(weight.shape[2:], default=1)
        sides = [n for n in sorted(set(numbers), reverse=True) if least <= n <= _LARGEST_SIDE]
        squares = [(side,) * (weight.dim() - _MATRIX) for side in (*sides[:2], 2 * least)]
        return [(2, channels, *square) for square in squares]
    # Weights of its own, as those that multiply frequencies: signals, then images.
    own = vars(made).get("in_channels")
    return [(2, own, *(_SIDE,) * count) for count in (1, 2)] if type(own) is int else []


def _of_own_images(made: object) -> list[tuple[int, ...]]:
    """Return images as large as an object was made for: ``img_size=(224, 192)`` asserts that."""
    first = next(iter(_of_layers(made)), ())
    held = vars(made).items() if len(first) == _HEADS_DIMS else ()
    sizes = [v for name, v in held if re.search(r"im(a)?ge?_?size|resolution|input_size", name)]
    pairs = [(v, v) for v in sizes if isinstance(v, int)]
    pairs += [tuple(v) for v in sizes if isinstance(v, tuple | list)]
    fit = [
        p
        for p in pairs
        if len(p) == _MATRIX and all(type(n) is int and 0 < n <= _LARGEST_IMAGE for n in p)
    ]
    pairs = fit or [(side, side) for side in _SIDES if _flattens(made)]
    return [(*first[:_MATRIX], *pair) for pair in pairs if first]


def _flattens(made: object) -> bool:
    """Say whether a layer takes all positions of an image at once, as many as nothing tells."""
    layers = list(made.modules()) if isinstance(made, torch.nn.Module) else []
    channels = {c.out_channels for c in layers if isinstance(c, torch.nn.Conv2d)}
    widths = {one.in_features for one in layers if isinstance(one, torch.nn.Linear)}
    return any(w > c and w % c == 0 for w in widths for c in channels)


def _of_gains(made: object) -> list[tuple[int, ...]]:
    """Return the shapes of what an object's own weights scale: images, for ``(1, channels, 1, 1)``.

    Where a weight has one number, or a dimension less, each row has a size of its own.
    """
    own = made.parameters(recurse=False) if isinstance(made, torch.nn.Module) else ()
    found: dict[tuple[int, ...], None] = {}
    for shape in (tuple(p.shape) for p in own):
        if 1 in shape and max(shape) > 1:
            sizes = iter(_ROWS)
            whole = shape if shape[0] == 1 else (1, *shape)
            found[tuple(next(sizes, 1) if size == 1 else size for size in whole)] = None
    return list(found)


def _of_norms(made: object) -> list[tuple[int, ...]]:
    """Return the shapes of what is normalised over several dimensions: ``LayerNorm((h, c))``."""
    layers = made.modules() if isinstance(made, torch.nn.Module) else ()
    sizes = (vars(layer).get("normalized_shape") for layer in layers)
    whole = [s for s in sizes if isinstance(s, tuple) and len(s) > 1]
    return [(2, *s) for s in whole if all(type(n) is int and n > 0 for n in s)]


def _of_tables(made: object, widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Return shapes with as many rows as a table between rows has: of windows of an image."""
    tables = made.buffers() if isinstance(made, torch.nn.Module) else ()
    square = (t.shape for t in tables if t.dim() == _MATRIX and not t.is_floating_point())
    return [(2, rows, width) for rows, columns in square for width in widths if rows == columns]


def _of_classes(made: object) -> list[tuple[int, ...]]:
    """Return shapes of scores of as many classes as an object is made for."""
    settings = getattr(made, "__dict__", {}).items()
    counts = {v for n, v in settings if type(v) is int and v > 1 and re.search(CLASSES, n.lower())}
    return [shape for n in sorted(counts - {WIDTH}) for shape in ((3, n), (2, n, 3, 5), (2, 3, n))]


def _of_windows(wanted: Sequence[Parameter], made: object) -> list[tuple[int, ...]]:
    """Return signals that are longer than every window, ``n_fft=400``."""
    plain = (*(p.default for p in wanted), *getattr(made, "__dict__", {}).values())
    sizes = [n for n in plain if type(n) is int and WIDTH < n <= _LONGEST_WINDOW]
    return [(2, 2 * max(sizes) + 3)] if sizes else []


def _of_caches(made: object) -> list[tuple[int, ...]]:
    """Return the shapes of what goes into a cache: some of its positions."""
    own = getattr(made, "__dict__", {}).values()
    held = made.buffers() if isinstance(made, torch.nn.Module) else own
    tensors = (value for value in held if isinstance(value, torch.Tensor))
    shapes = [tuple(t.shape) for t in tensors if t.dim() == _HEADS_DIMS]
    places = ((*s[:i], _POSITIONS, *s[i + 1 :]) for s in shapes for i in (2, 1))
    return list(dict.fromkeys(places))


def tell_of_object(declared: Declarations, function: Function | None, made: object) -> Declarations:
    """Add what the object says of arguments."""
    return _with_rows(_with_sizes(declared, function, made), function, made)


def _with_sizes(declared: Declarations, function: Function | None, made: object) -> Declarations:
    """Add which sizes of an argument are those of the object.

    ``c`` for ``b, c, t = x.shape`` and ``assert c == self.channels``.
    """
    given: dict[str, int] = {}
    for node in walk(function) if function is not None else ():
        match node:
            case ast.Compare(ast.Name(size), [ast.Eq() | ast.NotEq()], [ast.Attribute() as held]):
                known = getattr(made, held.attr, None)
                if ast.unparse(held.value) == "self" and type(known) is int and known > 0:
                    given[size] = known
    found: dict[str, Declared] = {}
    if function is None or not given:
        return declared
    for arg in list_arguments(function):
        one = declared.of(arg.arg)
        unpacked = tuple(s for s in list_unpacked(function, arg.arg) if given.keys() & set(s))
        if unpacked and not one.shapes:
            found[arg.arg] = replace(one, shapes=unpacked)
    given = {**declared.given, **given} if found else {**declared.given}
    return replace(declared, arguments={**declared.arguments, **found}, given=given)


def _with_rows(declared: Declarations, function: ast.AST | None, made: object) -> Declarations:
    """Add that what a method looks up in embeddings of its object are numbers of their rows.

    ``ids`` for ``self.table(ids.to(self.device))``.
    """
    found: dict[str, Declared] = {}
    for node in walk(function) if function is not None else ():
        match node:
            case ast.Call(ast.Attribute(ast.Name("self"), table), [looked, *_]):
                held, name = getattr(made, table, None), root_name(looked)
                known = found.get(name, declared.of(name))
                if isinstance(held, torch.nn.Embedding) and not known.kinds:
                    rows = str(held.num_embeddings)
                    found[name] = replace(known, kinds=frozenset({"int"}), below=rows)
    return replace(declared, arguments={**declared.arguments, **found}) if found else declared


def shrink_recorded_shape(dims: tuple[int, ...]) -> tuple[int, ...]:
    """Shrink a recorded shape, equal sizes staying equal and different ones different."""
    small = iter((5, 7, 6, 9, 10, 12))
    known: dict[int, int] = {}
    for size in dims[:-1]:
        if size not in known:
            known[size] = size if size <= 4 else next(small, size)  # noqa: PLR2004 - already small
    if dims and dims[-1] not in known:
        known[dims[-1]] = dims[-1] if dims[-1] <= 4 else WIDTH  # noqa: PLR2004 - already small
    return tuple(known[size] for size in dims)
