"""Guess what a parameter wants from its default, its annotation and its name.

Guesses are ordered by likelihood; the search tries them against the real function, so a wrong
guess costs a millisecond and proves nothing false.
"""

from __future__ import annotations

import inspect
import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch

from npufix.rewriters.verification.calls.values import (
    Several,
    Spec,
    Tensor,
    Value,
    list_tensors,
    replace_tensors,
)
from npufix.rewriters.verification.inputs.objects import offers, training_loops
from npufix.rewriters.verification.inputs.objects.openmmlab import annotations as of_images
from npufix.rewriters.verification.inputs.source import several
from npufix.rewriters.verification.inputs.source.declarations import Declared
from npufix.rewriters.verification.inputs.source.parameters import (
    WIDTH,
    Parameter,
    find_said_kind,
    guess_ends,
    guess_scalars,
)
from npufix.rewriters.verification.inputs.source.usage import OF_TENSORS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INTEGER_TENSOR = (
    r"ids?$|idx$|ind(ex|ices|exes)$|labels?$|targets?$|tokens?$|^gt|lens?$|lengths?$|offsets?$"
    r"|selected|(?<!drop_)paths?$|tags?$|^y$|classes$|positions?$|_pos$|^pos$|inds?$|^cu_?seq|ptr$"
)
_SPECIAL = (
    r"(eos|bos|pad|unk|sep|cls|mask|blank|start|end|stop|ignored?)_?(token_?)?(id|idx|index)$"
    r"|^(\w+_)?(device|dtype)$"
)
"""No tensor, though code that indexes takes one of ids."""
_WHOLE = r"(^|_)(ids?|idx|ind(ex|ices)|len(s|gths?)?|tokens?)$"
_TABLE = r"^(cos|sin)|freqs|rotary|rope"
_CORNERS = "_box_corners"
"""After the name of what the code takes for corners."""
BOXES = r"box|rois?$|anchors|proposals"
"""Corners: the first half of them is less than the other."""
MASK = r"mask|keep|valid$|is_pad"
_ENDS = r"^(next_|last_|is_|not_)?(dones?|terminals?|terminated|truncated|terminations?)$"
"""Flags of episodes, 0.0 or 1.0."""
_UNIT_TENSOR = r"prob|alpha|weights?_matrix|conf"
_ROTATIONS = r"(^|_)cis(_|$)"
_ROTATIONS_SAID = rf"{_ROTATIONS}|freq|rot|phase|pe$"
"""What is of magnitude one where it is complex."""
_TENSOR_ANNOTATION = r"Tensor"
ABSENT = r"Optional\[|\| *None|None *\|"
_MOST_HELD = 4
"""Guesses at each part of a dictionary."""
_MOST_DICTS = 24
_MOST_IN_LIST, _MOST_LISTS = 6, 60
_SEVERAL = r"(Tuple|tuple|List|list|Sequence|Iterable|Collection)\["
_CACHE = r"(^|_)past(_|$)|cache|(^|_)mems?$"
"""Keys and values of earlier positions."""
_HEADS = 4
_BARE = r"(?i)(typing\.)?(list|tuple|sequence|iterable|dict|mapping)"
"""An annotation that says nothing of what it holds."""
_PLAIN = r"\b(int|float|bool|str)\b"
_NO_NUMBERS = OF_TENSORS - {"real", "imag"}
"""What no number is asked for."""
_LENGTHS = r"(^|_)len(s|gths?)?$"
UNKNOWN = Declared()
BASES: tuple[tuple[int, ...], ...] = (
    (2, 3, WIDTH),
    (3, WIDTH),
    (2, 4, 3, WIDTH),
    (WIDTH,),
    (3, 4),
    (3, 2),
    (2, WIDTH, 3, 3),
    (4, 4),
    (2, 4, 4),
    (),
    (1, 2, 32, 32),  # what some operators want
    (4, 4, 4, WIDTH),  # beside what has the same sizes in another order
)
_BY_DIMS: tuple[tuple[int, ...], ...] = (
    (), (WIDTH,), (3, WIDTH), (2, 3, WIDTH), (2, 4, 3, WIDTH), (2, 4, 3, 5, WIDTH)
)  # fmt: skip


def guess_tensors(
    parameter: Parameter,
    base: tuple[int, ...],
    widths: Sequence[int] = (),
    declared: Declared = UNKNOWN,
    shapes: Sequence[tuple[int, ...]] = (),
) -> list[Spec]:
    """Return guesses that are tensors, with shapes that go with ``base``, or with these shapes."""
    if ends := guess_ends(parameter.name, shapes):
        return ends
    if declared.use.weighs and not shapes:
        return weigh_classes(*base[1:2], *base[-1:])
    parameter = _as_boxes(parameter, declared, shapes)
    cached = _guess_cached(parameter, base, declared, shapes)
    if cached and (parameter.annotation or declared.use.deep):
        return cached
    made = _guess_any(parameter, base, widths, shapes, declared.use.columns)
    made = [replace_tensors(s, lambda t: _as_told(t, declared)) for s in made]
    fitting = [s for s in made if all(map(declared.takes, list_tensors(s)))]
    if not fitting and declared.is_tensor and not shapes:
        counts = sorted(declared.use.dims) or [declared.use.least, declared.use.least + 1]
        known = [_BY_DIMS[n] for n in counts if n < len(_BY_DIMS)]
        made = _guess_any(parameter, base, widths, known, declared.use.columns)
        fitting = [s for s in made if all(map(declared.takes, list_tensors(s)))]
    if declared.use.elements and base:
        lengths = [Tensor(base[:1], "int", high) for high in (4, WIDTH)]
        fitting = [*filter(declared.takes, lengths), *fitting]
    if re.search(_LENGTHS, parameter.name.lower()) and base and not shapes:
        # one for each row; what is multiplied is a share of the longest
        shares = [Tensor(base[:1], "unit")] if declared.use.added else []
        lengths = [*shares, *(Tensor(base[:1], "int", high) for high in (4, WIDTH))]
        fitting = list(dict.fromkeys([*(t for t in lengths if declared.takes(t)), *fitting]))
    if not fitting and "complex" in declared.kinds:
        likely = shapes or _distinct([t.shape for s in made for t in list_tensors(s) if t.shape])
        rotates = re.search(_ROTATIONS_SAID, parameter.name.lower()) is not None
        fitting = [Tensor(s, "rotation" if rotates else "complex") for s in likely]
    if declared.use.measured == "share":
        floats = [t for t in fitting if isinstance(t, Tensor)]
        fitting = [
            one for t in floats for one in (replace(t, kind="binary"), replace(t, kind="unit"))
        ]
    if "zero-one" in declared.kinds and (not fitting or "float" not in declared.kinds):
        fitting += [Tensor(s, "binary") for s in shapes]  # a loss wants 0.0 and 1.0
    return [*cached, *fitting]


def _as_boxes(
    parameter: Parameter, declared: Declared, shapes: Sequence[tuple[int, ...]]
) -> Parameter:
    """Return a parameter by a name that says so, if text or code says that it holds boxes."""
    if declared.use.corners:
        return replace(parameter, name=f"{parameter.name}{_CORNERS}")
    if declared.boxes and shapes and not re.search(BOXES, parameter.name.lower()):
        return replace(parameter, name=f"{parameter.name}_boxes")
    return parameter


def weigh_classes(*counts: int) -> list[Spec]:
    """Return weights of so many classes, by which nobody differentiates."""
    return [Tensor((count,), "unit", constant=True) for count in dict.fromkeys(counts)]


def _as_told(tensor: Tensor, declared: Declared) -> Tensor:
    """Return whole numbers of a type that holds few, all of which occur: bytes of an image.

    And masks with what each row of theirs is promised to have, lengths that are at least one.
    """
    if declared.promise is not None:
        tensor = replace(tensor, promise=declared.promise)
    if declared.rises and tensor.kind == "float":
        tensor = replace(tensor, rises=True)
    if tensor.kind == "int" and declared.least > tensor.low:
        high = max(tensor.high, declared.least + 1)
        tensor = replace(tensor, low=declared.least, high=high, sound=True)
    if tensor.kind != "int" or declared.narrow is None:
        return tensor
    info = torch.iinfo(declared.narrow)
    low = declared.least or info.min
    return replace(tensor, dtype=declared.narrow, low=low, high=info.max + 1)


def _guess_cached(
    parameter: Parameter,
    base: tuple[int, ...],
    declared: Declared,
    shapes: Sequence[tuple[int, ...]],
) -> list[Spec]:
    """Return keys and values as tuples of two, or a tuple of such of two layers."""
    annotation, use = parameter.annotation, declared.use
    named = re.search(_CACHE, parameter.name.lower())
    deep = re.search(several.NESTED, annotation) is not None
    if annotation and not (deep or (named and re.search(_SEVERAL, annotation))):
        return []
    parted = (annotation or not shapes) and (use.indexed or use.looped)
    if not (deep or (named and (use.paired or use.deep or parted))):
        return []  # ``cache (blocks, H, D)`` has rows
    found = [*shapes, base]
    if named and len(base) == _HEADS - 1 and not shapes:
        rows, length, width = base
        found = [(rows, heads, length, width // heads) for heads in (4, 2, 1, 8)] + found
    outer = re.search(_SEVERAL, annotation)
    kind: Literal["tuple", "list"] = "list" if outer and outer[1] in {"List", "list"} else "tuple"
    layers = (2, 0) if not annotation and use.looped and not use.deep else (2 * (deep or use.deep),)
    return [
        Several((Tensor(s),) * (each or 1) * 2, kind, each=each) for each in layers for s in found
    ]


def _guess_any(
    parameter: Parameter,
    base: tuple[int, ...],
    widths: Sequence[int],
    shapes: Sequence[tuple[int, ...]],
    columns: int,
) -> list[Spec]:
    name, annotation = parameter.name.lower(), parameter.annotation
    if shapes:
        known = _of_shapes(name, shapes)
        said = find_said_kind(annotation)
        return _join(parameter, [[t for t in group if said in {"", t.kind}] for group in known])
    if re.search(_ROTATIONS, name) and len(base) > 1:
        pairs = base[-1] // 2
        shapes = [(base[1], pairs), (base[-2], pairs), (1, base[1], 1, pairs), (*base[:2], pairs)]
        return [Tensor(s, "rotation") for s in _distinct(shapes)]
    # with more than corners, boxes have headings or velocities as well
    corners = name.endswith(_CORNERS)
    if re.search(BOXES, name) and not re.search(MASK, name) and (columns <= 4 or corners):  # noqa: PLR2004 - corners
        width = max(columns, 4)
        return [Tensor((*lead, width), "box") for lead in ((3,), (2,), (2, 3), ())]
    floats = [Tensor(s) for s in _shapes(name, _widen(base, columns), widths)]
    units = [Tensor(s.shape, "unit") for s in floats]
    ints = _integers(name, base)
    bools = _masks(name, base)
    order: list[list[Tensor]] = [floats, ints[:6], bools[:2], units[:1]]
    if said := find_said_kind(annotation):
        order = [ints if said == "int" else bools]
    elif re.search(MASK, name):
        added = [Tensor(s.shape, "additive") for s in floats[:1]]  # to the scores of heads
        order = [added, floats[:1], bools, floats[1:2], ints[:6]]
        if len(base) != _HEADS:
            order = [bools[:2], _for_scores(base), bools[2:], floats[:2], ints[:6]]
    elif re.search(INTEGER_TENSOR, name):
        order = [ints, floats[:2]]
    elif re.search(_UNIT_TENSOR, name):
        order = [units, floats]
    return _join(parameter, order)


def _widen(base: tuple[int, ...], columns: int) -> tuple[int, ...]:
    """Return a shape with enough columns: for ``pose[:, :, :3, 3]`` beside matrices of 3 x 3."""
    if not base or columns <= base[-1]:
        return base
    square = 2 if base[-2:] == (base[-1],) * 2 else 1
    return (*base[:-square], *(columns,) * square)


def _of_shapes(name: str, shapes: Sequence[tuple[int, ...]]) -> list[list[Tensor]]:
    """Return tensors of known shapes, of the kinds that a name suggests."""
    floats = [Tensor(s) for s in shapes]
    highs = [*(s[-1] for s in shapes[:1] if s and "pos" in name), 4, 2, WIDTH]
    highs = [2] if re.search(MASK, name) else highs
    ints = [Tensor(s, "int", h) for s in shapes for h in dict.fromkeys(highs)]
    bools = [Tensor(s, "bool") for s in shapes]
    units = [Tensor(s, "unit") for s in shapes]
    widths = {4, 6, 5, 7} if name.endswith(_CORNERS) else {4, 6}
    if re.search(BOXES, name) and all(s[1:] and s[-1] in widths for s in shapes):
        return [[Tensor(s, "box") for s in shapes], floats, ints]
    if re.search(MASK, name):
        return [bools, ints, [Tensor(s, "additive") for s in shapes], floats]
    if re.search(INTEGER_TENSOR, name):
        return [ints, floats, bools]
    if re.search(_UNIT_TENSOR, name):
        return [units, floats, ints]
    return [floats, ints, bools]


def _join(parameter: Parameter, order: Sequence[Sequence[Tensor]]) -> list[Spec]:
    """Return all guesses; pairs of them first, for a parameter that is several."""
    specs: list[Spec] = [spec for group in order for spec in group]
    if re.search(_ENDS, parameter.name.lower()):
        known = [s for group in order for s in group if s.kind in {"float", "bool"}]
        specs = [replace(s, kind="binary") if s.kind == "float" else s for s in known]
    if re.search(_SEVERAL, parameter.annotation):
        is_tuple = re.search("(?i)tuple", parameter.annotation)
        kind: Literal["tuple", "list"] = "tuple" if is_tuple else "list"
        first = dict.fromkeys([*specs[:6], *(s for group in order for s in group[:1])])
        several = [Several((s, s), kind) for s in first if isinstance(s, Tensor)]
        # what goes through a list would go through the rows of a tensor too
        alone = several and re.fullmatch(r"(typing\.)?[LlSIC]\w+\[.*\]", parameter.annotation)
        specs = [*several, *(() if alone else specs)]
    return specs


def _shapes(name: str, base: tuple[int, ...], widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the shapes that floating tensors may have."""
    lead, last = base[:-1], base[-1:]
    others = [(*lead, width) for width in widths] if base else []
    turned = (*base[:-2], *reversed(base[-2:]))
    found = [base, *others, lead, last, base[-2:], (*lead, 1), base[:1], turned]
    if len(base) > 2:  # noqa: PLR2004 - beside positions, a row for all of them
        found.append((*base[:1], *last))
    heads = len(base) == _HEADS
    if re.search(_TABLE, name):
        # Per position, per row and position, as they come out of the cache or of the module.
        rowwise = [(*base[:1], *base[-2:]), (1, *base[-2:])] if heads else []
        other = [(*base[:2], *base[-1:])] if heads else []
        whole = (*rowwise[:1], *other, base[-2:])
        halves = [(*shape[:-1], base[-1] // 2) for shape in whole if len(base) > 1]
        found = [*rowwise, base[-2:], (1, 1, *base[-2:]), *other, *halves, *found]
    if re.search(MASK, name) and heads:
        found.insert(0, _between_positions(base))
    return _distinct(found)


def _integers(name: str, base: tuple[int, ...]) -> list[Tensor]:
    lead, last = base[:-1], base[-1:]
    rows, length = (*base[:1], *base[-2:-1]), base[-2:-1]
    shapes = [lead, base, (*lead, 1), base[:1], (*base[:1], 1), last, rows, (*lead, 2)]
    highs = [2] if re.search(MASK, name) else [4, 2, WIDTH]
    if re.search("pos", name):
        shapes[:0] = [rows, length]
        highs[:0] = base[-2:-1]  # they index a table that is as long
    return [Tensor(s, "int", h) for s in _distinct(shapes) for h in highs]


def _masks(name: str, base: tuple[int, ...]) -> list[Tensor]:
    lead, last = base[:-1], base[-1:]
    shapes = [base, lead, (*lead, 1), last, base[:1]]
    if re.search(MASK, name) and len(base) == _HEADS:
        shapes.insert(0, _between_positions(base))
    return [Tensor(s, "bool") for s in _distinct(shapes)]


def _for_scores(base: tuple[int, ...]) -> list[Tensor]:
    """Return masks of the scores that attention makes of (batch, positions, width)."""
    if len(base) != _HEADS - 1:
        return []
    shape = (base[0], 1, base[1], base[1])
    return [Tensor(shape, "additive"), Tensor(shape, "bool")]


def _between_positions(base: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of what is added to the scores of every head."""
    return (*base[:1], 1, base[-2], base[-2])


def _distinct(shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    return list(dict.fromkeys(shapes))


def _guess_held(
    parameter: Parameter, base: tuple[int, ...], widths: Sequence[int], declared: Declared
) -> list[Spec]:
    """Return dictionaries with the keys that the code reads, for a parameter that is one.

    And what closes over a loss.
    """
    if parameter.name == "closure":  # of an optimiser, for a loss
        left_out = [Value(parameter.default, given=False)] * parameter.has_default
        return [*left_out, training_loops.offer_closure()]
    if re.search(training_loops.DICTIONARIES, parameter.annotation):
        return []
    keys = tuple(declared.use.keys)
    named = re.search(r"(?i)\b(dict|mapping)\[ *str, *(torch\.)?Tensor", parameter.annotation)
    if not keys and named and not parameter.has_default:
        keys = ("first", "second")
    of_tensor = re.search(r"Tensor|ndarray", parameter.annotation) is not None
    if not keys or (of_tensor and not re.search(r"(?i)dict|mapping", parameter.annotation)):
        return []
    held = re.search(r"(?i)(?:dict|mapping)\[.*, *([\w.]*Tensor)\W*$", parameter.annotation)
    kind = "" if held is None else held[1]
    inner = [
        [
            s
            for s in guess_argument(
                Parameter(key, kind, inspect.Parameter.empty),
                base,
                widths,
                *declared.held.get(key, ()),
            )
            if isinstance(s, Value)
            or (isinstance(s, Tensor) and _is_of_batch(key, s, *declared.held.get(key, ())[1:]))
        ]
        for key in keys
    ]
    most = _MOST_DICTS
    if declared.use.listed:  # of several ranks: one for each row, beside one for each position
        most, rows = _MOST_LISTS, (*base[:1], *base[-1:])
        inner = [sorted(of, key=lambda s: s != Tensor(rows))[:_MOST_IN_LIST] for of in inner]
    else:
        inner = [of[:_MOST_HELD] for of in inner]
    ranks = sorted(itertools.islice(itertools.product(*map(range, map(len, inner))), 512), key=sum)
    made: list[Spec] = [
        Several(
            tuple(o[i] for o, i in zip(inner, rank, strict=True)),
            "list" if declared.use.listed else "dict",
            () if declared.use.listed else keys,
        )
        for rank in ranks[:most]
    ]
    if parameter.has_default:
        return [Value(parameter.default, given=False), *made]
    return made


def _is_of_batch(key: str, tensor: Tensor, shapes: Sequence[tuple[int, ...]] = ()) -> bool:
    """Say whether a tensor is as in a batch: ids, labels and masks are of rows and positions.

    Labels may be floats, which ids and lengths are not.
    """
    if tensor.kind != "int" and re.search(_WHOLE, key.lower()):
        return False
    named = re.search(INTEGER_TENSOR, key.lower()) or re.search(MASK, key.lower())
    return not named or len(tensor.shape) <= 2 or tensor.shape in shapes  # noqa: PLR2004 - rows and positions


def guess_argument(
    parameter: Parameter,
    base: tuple[int, ...],
    widths: Sequence[int] = (),
    declared: Declared = UNKNOWN,
    shapes: Sequence[tuple[int, ...]] = (),
) -> list[Spec]:
    """Return everything worth trying, the likeliest first.

    ``shapes`` are those that the code declares, in numbers.
    """
    parameter = _annotated(parameter, declared)
    detected = of_images.offer_detections(parameter, declared.use)
    held = [] if detected else _guess_held(parameter, base, widths, declared)
    looped = training_loops.offer_for_loops(parameter, declared.use)
    looped = looped or several.guess_added_up(parameter, declared.use)
    if held or looped:
        return [*detected, *held, *looped]
    wants_tensor = is_tensor(parameter, declared)
    numberless = wants_tensor or declared.use.indexed or declared.use.weighs
    numberless &= parameter.annotation != "str"  # of which a part is taken
    numberless |= not parameter.annotation and bool(declared.use.attributes & _NO_NUMBERS)
    plain = [] if numberless else guess_scalars(parameter, widths)
    if declared.use.summed:  # ``x * weight + bias``: no flag
        plain = [s for s in plain if str(s) not in {"False", "True"}]
    plain = [*(several.guess_several(parameter, declared.use)), *plain]
    unsaid = not (parameter.annotation or parameter.has_default or declared.use.attributes)
    decides = declared.use.decides and unsaid and not numberless
    plain = plain or [Value(0.5), Value(2.0), Value(2)] * decides
    if declared.use.rounds and plain and base:
        plain.insert(0, Value(base[0]))
    made = several.lengthen(guess_tensors(parameter, base, widths, declared, shapes), declared.use)
    shaped = declared.shapes or re.search(f"{_SEVERAL}|{_TENSOR_ANNOTATION}", parameter.annotation)
    if declared.use.looped and not shaped:
        made = [Several((s, s), "list") for s in made[:8] if isinstance(s, Tensor)] + made
    if objects := offers.guess_objects(parameter, declared.use):
        doubtful = re.search(rf"{training_loops.MODEL}|{of_images.DETECTED}", parameter.name)
        return [*objects, *made] if doubtful and not parameter.annotation else objects
    if isinstance(parameter.default, tuple) and parameter.default:
        last = parameter.default[-1]  # one more k of an accuracy, or axis of a mean
        plain += [Value((*parameter.default, last + 1))] if type(last) is int else []
        plain += several.tell_apart(parameter.default)
    if parameter.has_default:
        default: list[Spec] = [Value(parameter.default, given=False)]
        told = plain and re.search(_PLAIN, parameter.annotation)  # ``scale: float | None = None``
        others = made if wants_tensor or (parameter.default is None and not told) else []
        same_kind = [
            s for s in plain if isinstance(s, Value) and type(s.value) is type(parameter.default)
        ]
        numbers = plain if parameter.default is None and not wants_tensor else same_kind
        return default + (others if wants_tensor else numbers + others)
    if wants_tensor:
        absent: list[Spec] = [Value(None)] if re.search(ABSENT, parameter.annotation) else []
        return absent + made
    named = re.search(_SPECIAL, parameter.name.lower()) is not None
    if plain and (parameter.annotation or named or decides):
        return plain
    return plain + made if plain and not re.search(INTEGER_TENSOR, parameter.name) else made + plain


def _annotated(parameter: Parameter, declared: Declared) -> Parameter:
    """Return a parameter with what text and code say of it, in place of an annotation."""
    required = parameter.default is None or not parameter.has_default
    bare = re.fullmatch(_BARE, parameter.annotation) and "[" in declared.type
    if declared.type and required and (bare or not parameter.annotation):
        return replace(parameter, annotation=declared.type)
    number = "int" if declared.use.counts else "float" if declared.use.sets else ""
    told = parameter.annotation or (parameter.has_default and type(parameter.default) is not int)
    return replace(parameter, annotation=number) if number and not told else parameter


def is_tensor(parameter: Parameter, declared: Declared) -> bool:
    """Say whether the code says that an argument is a tensor."""
    annotated = re.search(_TENSOR_ANNOTATION, parameter.annotation) is not None
    if not annotated and re.search(_PLAIN, parameter.annotation):
        return False  # "an integer" is what the text says of a number as well
    said = bool(declared.kinds) and type(parameter.default) is not bool  # "last (Bool): a flag"
    return annotated or declared.is_tensor or said


def is_integral(specs: Mapping[str, Spec]) -> bool:
    """Say whether a tensor is of integers though nothing in its name asks for them."""
    return any(
        isinstance(s, Tensor) and s.kind == "int" and not re.search(INTEGER_TENSOR, name.lower())
        for name, s in specs.items()
    )
