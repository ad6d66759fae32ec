"""Guess what a parameter wants from its default, its annotation and its name.

Guesses are ordered by likelihood; the search tries them against the real function, so a wrong
guess costs a millisecond and proves nothing false.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from npufix.rewriters.verification.calls.values import MadeArgument, Several, Spec, Tensor, Value

if TYPE_CHECKING:
    from collections.abc import Sequence

SIZES: tuple[tuple[str, tuple[object, ...]], ...] = (
    (r"_tp$|parallel|world_size", (1, 2)),
    (r"intermediate|ffn|mlp_dim|inner", (16,)),
    (r"vocab", (11,)),
    (r"num_(key_value|kv)_heads|n_kv", (2, 1)),
    (r"num_heads|n_?heads?|num_attention_heads", (2, 4)),
    (r"top_?k|num_experts_per_tok|num_selected", (2, 1)),
    (r"expert", (4,)),
    (r"class|num_labels|categor", (4, 8)),
    (r"head_dim", (4, 8)),
    (r"kernel", (3,)),
    (r"patch_?size|window_?size|^window$|^ws$", (2, 4)),
    (r"im(a)?ge?_?size|resolution|input_size", (8,)),
    (r"max_.*(pos|len|seq)|seq_?len|max_?len", (16,)),
    (r"layers?$|depth|groups?$|stride|dilation", (1, 2)),
    (r"padding$", (0, 1)),
    (r"axis$|unsqueeze_dim", (-1, 2, 1, 0)),
    (r"^dim$", (8, -1, 1, 0)),
    (r"rep(eat)?s?$|times|n_rep", (2, 1)),
    (r"layer_idx|rank|pad_token|_id$|_idx$|index$", (0, 3)),
    (r"dim|hidden|size|features|channels|embed|width|d_model|shape", (8, 16, 4)),
    (r"^(n|k|m|num.*|.*count)$", (2, 8, 4)),
)
FLOATS: tuple[tuple[str, tuple[object, ...]], ...] = (
    (r"eps", (1e-5, 1e-3)),
    (r"drop|^p$|prob|smooth", (0.1,)),
    (r"theta|base", (10000.0,)),
    (r"temperature|tau|gamma", (2.0, 0.5)),
    (r"alpha|scal|momentum|rate|lambda|decay|factor|std|range|thresh|limit", (0.25, 1.0)),
)
FLAGS = (
    r"^(is_|use_|return_|output_|do_|no_|with_|has_|keep|training|inplace|causal|bias$|.*_bias$)"
)
TEXTS: tuple[tuple[str, tuple[object, ...]], ...] = (
    (r"reduction", ("mean", "sum", "none")),
    (r"act", ("silu", "gelu", "relu")),
    (r"attn_impl", ("eager",)),
    (r"^device$|_device$", ("cpu",)),
)
INTEGER_TENSOR = (
    r"ids?$|idx$|ind(ex|ices|exes)$|labels?$|targets?$|tokens?$|^gt|lens?$|lengths?$|offsets?$"
    r"|selected|^y$|classes$|positions?$|_pos$|^pos$|inds?$"
)
_TABLE = r"^(cos|sin)|freqs|rotary|rope"
HEADS = r"^x?([qkv]|query|key|value)(_|$)|^(queries|keys|values)$"
"""Queries, keys and values: split into heads, more often than not."""
BOXES = r"box|rois?$|anchors|proposals"
"""Corners: the first half of them is less than the other."""
MASK = r"mask|keep|valid$|is_pad"
_UNIT_TENSOR = r"prob|alpha|weights?_matrix|conf"
_ROTATIONS = r"(^|_)cis(_|$)"
_OPTIMIZER = r"(^|_)optim(izer)?$|^opt$"
_MODEL = "(^|_)(model|net|network|module)$"
_TENSOR_ANNOTATION = r"Tensor"
_MODULE_ANNOTATION = r"(nn\.|^)Module$"
_ABSENT = r"Optional\[|\| *None|None *\|"
_HEADS = 4
# Every symbol has its own size, so that a wrong axis cannot pass by coincidence.
WIDTH = 8
BASES: tuple[tuple[int, ...], ...] = (
    (2, 3, WIDTH),
    (3, WIDTH),
    (2, 4, 3, WIDTH),
    (WIDTH,),
    (3, 4),
    (3, 2),
    (2, WIDTH, 3, 3),
    (4, 4),
    (),
    (1, 2, 32, 32),  # what some operators want
)


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the function to call."""

    name: str
    annotation: str
    default: object
    keyword_only: bool = False

    @property
    def has_default(self) -> bool:
        """Whether the call may leave it out."""
        return self.default is not inspect.Parameter.empty


def list_parameters(signature: inspect.Signature) -> list[Parameter]:
    """Return the named parameters; what ``*args`` would collect is left empty."""
    return [
        Parameter(
            p.name,
            "" if p.annotation is p.empty else _text(p.annotation),
            p.default,
            p.kind is p.KEYWORD_ONLY,
        )
        for p in signature.parameters.values()
        if p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}
    ]


def _text(annotation: object) -> str:
    if isinstance(annotation, type):
        return annotation.__name__
    return str(annotation)


def _named(table: Sequence[tuple[str, tuple[object, ...]]], name: str) -> tuple[object, ...]:
    return next((values for pattern, values in table if re.search(pattern, name)), ())


def guess_scalars(parameter: Parameter, widths: Sequence[int] = ()) -> list[Spec]:
    """Return guesses that are no tensors: by annotation if there is one, else by name."""
    name, annotation = parameter.name.lower(), parameter.annotation
    found: list[object] = []
    if re.search(r"\bbool\b", annotation) or re.search(FLAGS, name):
        found += [False, True]
    if re.search(r"\bfloat\b", annotation) or (not annotation and _named(FLOATS, name)):
        found += _named(FLOATS, name) or (0.5, 2.0)
    if re.search(r"\bint\b", annotation) or (not annotation and _named(SIZES, name)):
        found += [*(_named(SIZES, name) or (2, 8, 4, 1)), *widths]
    if re.search(r"\bstr\b", annotation) or (not annotation and _named(TEXTS, name)):
        found += _named(TEXTS, name)
    specs: list[Spec] = []
    for value in found:
        if not any(
            type(value) is type(s.value) and value == s.value for s in specs if isinstance(s, Value)
        ):
            specs.append(Value(value))
    return specs


def guess_tensors(
    parameter: Parameter, base: tuple[int, ...], widths: Sequence[int] = ()
) -> list[Spec]:
    """Return guesses that are tensors, with shapes that go with ``base``."""
    name, annotation = parameter.name.lower(), parameter.annotation
    if re.search(_ROTATIONS, name) and len(base) > 1:
        pairs = base[-1] // 2
        shapes = [(base[1], pairs), (base[-2], pairs), (1, base[1], 1, pairs), (*base[:2], pairs)]
        return [Tensor(s, "complex") for s in _distinct(shapes)]
    if re.search(BOXES, name):
        return [Tensor(s, "box") for s in ((3, 4), (2, 4), (2, 3, 4), (4,))]
    floats = [Tensor(s) for s in _shapes(name, base, widths)]
    units = [Tensor(s.shape, "unit") for s in floats]
    ints = _integers(name, base)
    bools = _masks(name, base)
    order: list[list[Tensor]] = [floats, ints[:6], bools[:2], units[:1]]
    if re.search("Long|Int", annotation):
        order = [ints]
    elif "Bool" in annotation:
        order = [bools]
    elif re.search(MASK, name):
        # Between heads, what is added to the scores; elsewhere, what selects.
        added = [Tensor(s.shape, "additive") for s in floats[:1]]
        order = [added, floats[:1], bools, floats[1:2], ints[:6]]
        if len(base) != _HEADS:
            order = [bools[:2], _for_scores(base), bools[2:], floats[:2], ints[:6]]
    elif re.search(INTEGER_TENSOR, name):
        order = [ints, floats[:2]]
    elif re.search(_UNIT_TENSOR, name):
        order = [units, floats]
    specs: list[Spec] = [spec for group in order for spec in group]
    if re.search(r"(Tuple|tuple|List|list|Sequence)\[", annotation):
        pair: list[Spec] = [Several((s, s)) for s in specs[:4] if isinstance(s, Tensor)]
        specs = pair + specs
    return specs


def _shapes(name: str, base: tuple[int, ...], widths: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the shapes that floating tensors may have."""
    lead, last = base[:-1], base[-1:]
    others = [(*lead, width) for width in widths] if base else []
    found = [base, *others, lead, last, base[-2:], (*lead, 1), base[:1]]
    heads = len(base) == _HEADS
    if re.search(_TABLE, name):
        # Per position, per row and position, as they come out of the cache or of the module.
        rowwise = [(*base[:1], *base[-2:]), (1, *base[-2:])] if heads else []
        other = [(*base[:2], *base[-1:])] if heads else []
        found = [*rowwise, base[-2:], (1, 1, *base[-2:]), *other, *found]
    if re.search(MASK, name) and heads:
        found.insert(0, _between_positions(base))
    return _distinct(found)


def _integers(name: str, base: tuple[int, ...]) -> list[Tensor]:
    lead, last = base[:-1], base[-1:]
    rows, length = (*base[:1], *base[-2:-1]), base[-2:-1]
    shapes = [lead, base, (*lead, 1), base[:1], (*base[:1], 1), last, rows, (*lead, 2)]
    highs = [4, 2, WIDTH]
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


def guess_attribute(name: str) -> object:
    """Return what an attribute of this name may be.

    Raises:
        AttributeError: nobody knows.

    """
    lower = name.lower()
    if re.search(FLAGS, lower):
        return False
    for table in (FLOATS, TEXTS, SIZES):
        values = _named(table, lower)
        if values:
            return values[0]
    raise AttributeError(name)


class StandInModule(torch.nn.Module):
    """A module that is an argument, for the sake of ``training`` and of a few numbers."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the name suggests
        """Invent what is not there."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return guess_attribute(name)


DESCENT = "torch.optim.SGD([torch.zeros(1)], lr=0.125)"


def descent() -> torch.optim.Optimizer:
    """Return an optimiser; what it trains is among the other arguments."""
    return torch.optim.SGD([torch.zeros(1)], lr=0.125)


def linear(seed: int) -> torch.nn.Module:
    """Return a layer that is not the one of another seed."""
    torch.default_generator.manual_seed(seed)
    return torch.nn.Linear(WIDTH, WIDTH)


def is_default(spec: Spec | None) -> bool:
    """Say whether an argument is left out of the call."""
    return isinstance(spec, Value) and not spec.given


def vary_default(parameter: Parameter) -> list[Spec]:
    """Return what may be passed in place of a default that is a number or a flag."""
    default = parameter.default
    if isinstance(default, bool):
        return [Value(not default)]
    if not isinstance(default, int | float):
        return []
    known = [s for s in guess_scalars(parameter) if isinstance(s, Value) and s.value != default]
    own = [s for s in known if type(s.value) is type(default)]
    return [*own[:3], Value(default * 2 or type(default)(1))]


def _objects(parameter: Parameter) -> list[Spec]:
    """Return modules and optimisers, for a parameter that is one."""
    own = f"__import__({__name__!r}, fromlist=[''])"
    seed = sum(map(ord, parameter.name))
    layer = MadeArgument(lambda: linear(seed), "a linear layer", f"{own}.linear({seed})")
    if re.search(_MODULE_ANNOTATION, parameter.annotation):
        code = f"{own}.{StandInModule.__name__}()"
        stand_in = MadeArgument(StandInModule, "a stand-in module", code)
        called = re.search(_MODEL, parameter.name)
        return [layer, stand_in] if called else [stand_in, layer]
    if parameter.has_default:
        return []
    if re.search(_OPTIMIZER, parameter.name) or "Optimizer" in parameter.annotation:
        return [MadeArgument(descent, "SGD over the parameters of the model", DESCENT)]
    return [layer] if re.search(_MODEL, parameter.name) else []


def guess_argument(
    parameter: Parameter, base: tuple[int, ...], widths: Sequence[int] = ()
) -> list[Spec]:
    """Return everything worth trying, the likeliest first."""
    plain = guess_scalars(parameter, widths)
    wants_tensor = re.search(_TENSOR_ANNOTATION, parameter.annotation) is not None
    made = guess_tensors(parameter, base, widths)
    objects = _objects(parameter)
    if objects:
        doubtful = re.search(_MODEL, parameter.name) and not parameter.annotation
        return [*objects, *made] if doubtful else objects
    if isinstance(parameter.default, tuple) and parameter.default:
        # One more of the same kind: the ks of an accuracy, the axes of a mean.
        last = parameter.default[-1]
        plain += [Value((*parameter.default, last + 1))] if type(last) is int else []
    if parameter.has_default:
        default: list[Spec] = [Value(parameter.default, given=False)]
        others = made if wants_tensor or parameter.default is None else []
        same_kind = [
            s for s in plain if isinstance(s, Value) and type(s.value) is type(parameter.default)
        ]
        numbers = plain if parameter.default is None and not wants_tensor else same_kind
        return default + (others if wants_tensor else numbers + others)
    if wants_tensor:
        absent: list[Spec] = [Value(None)] if re.search(_ABSENT, parameter.annotation) else []
        return absent + made
    if parameter.annotation and plain:
        return plain
    # No annotation: a name that is known to be a number is tried as one first.
    return plain + made if plain and not re.search(INTEGER_TENSOR, parameter.name) else made + plain


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
