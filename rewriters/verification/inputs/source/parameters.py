"""Parameters of a function, and what their names and annotations say of plain values."""

from __future__ import annotations

import ast
import copy
import inspect
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from npufix.rewriters.graph.modules.syntax import list_defaults
from npufix.rewriters.verification.calls.values import Spec, Tensor, Value
from npufix.rewriters.verification.inputs.source.operands import list_differentiated, list_options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Table: TypeAlias = tuple[tuple[re.Pattern[str], tuple[object, ...]], ...]


def _compile(*rows: tuple[str, tuple[object, ...]]) -> Table:
    return tuple((re.compile(pattern), values) for pattern, values in rows)


CLASSES = r"class|num_labels|categor"
"""What says how many classes there are."""
_TENSORS = (
    r"^(?!n_|d_|num_|max_|dim_|size_)\w*"
    r"(hidden_states?|embeds|_embeddings?|_emb(ed)?|expert_outputs?|depth_map|_logits|_scores)$"
)
"""What code calls values that were computed: ``hidden_states`` is no width."""
SIZES = _compile(
    (_TENSORS, ()),
    (r"_tp$|parallel|world_size", (1, 2)),
    (r"intermediate|ffn|mlp_dim|inner", (16,)),
    (r"vocab", (11,)),
    (r"num_(key_value|kv)_heads|n_kv", (2, 1)),
    (r"num_heads|n_?heads?|num_attention_heads|^heads$", (2, 4)),
    (r"top_?k|num_experts_per_tok|num_selected", (2, 1)),
    (r"expert", (4,)),
    (CLASSES, (4, 8)),
    (r"head_dim", (4, 8)),
    (r"kernel", (3,)),
    (r"n_?fft|fft_?(size|len)|frame_?len|win(dow)?_?len", (16, 8)),
    (r"hop", (4, 2)),
    (r"patch_?size|window_?size|^window$|^ws$", (2, 4)),
    (r"im(a)?ge?_?size|resolution|input_size", (8,)),
    (r"max_.*(pos|len|seq)|seq_?len|max_?len", (16,)),
    (r"layers?$|depth", (2, 1)),  # of one, nobody sees which is left out
    (r"stride|dilation", (1, 2)),
    (r"groups?$", (2, 1)),  # of one group, none can be taken for another
    (
        r"epochs?$|(^|_)iter(ation)?s?$|global_step|steps$|(log|print)_(freq|every|interval)",
        (2, 3),
    ),
    (r"padding$", (0, 1)),
    (r"axis$|unsqueeze_dim", (-1, 2, 1, 0)),
    (r"^dim$", (8, -1, 1, 0)),
    (r"rep(eat)?s?$|times|n_rep", (2, 1)),
    (r"ignore_?(index|idx|label|id)$", (-100, 1, 255)),
    (r"layer_idx|rank|pad_token|_id$|_idx$|index$", (0, 3)),
    (r"^n(um|b)?_?dims?$|^ndims?$", (2, 3, 1)),
    (
        r"dim|hidden|size|(^|in_|out_|n(um)?_)features|channels|embed|width|d_model|shape",
        (8, 16, 4),
    ),
    (r"^(n|k|m|num.*|.*_num|.*count)$", (2, 8, 4)),
)
FLOATS = _compile(
    (r"(?<!st)eps", (1e-5, 1e-3)),
    (r"drop|^p$|(?<!log)(?<!log_)prob|smooth", (0.1,)),
    (r"theta|base", (10000.0,)),
    (r"temperature|tau|gamma", (2.0, 0.5)),
    (r"alpha|(^|_)lr(_|$)|scal|momentum|rate|lambda|decay|std|range|limit", (0.25, 1.0)),
    (r"sparsity|fraction", (0.5, 0.25)),
    (r"factor", (2.0, 0.25)),  # by which something becomes smaller, or larger
    (r"thresh", (0.5, 0.25, 1.0)),
    (r"(^|_)(max|high|upper|end)$", (2.0, 4.0)),  # others are 0.5: two bounds are apart
)
FLAGS = (
    r"^(is_|use_|return_|output_|do_|no_|with_|has_|keep|training|inplace|causal|bias$|.*_bias$)"
)
TEXTS = _compile(
    (r"reduction", ("mean", "sum", "none")),
    (r"approximate", ("tanh", "none")),
    (r"(^|_)act(fn|func|_|$)|activation", ("silu", "gelu", "relu")),
    (r"attn_impl", ("eager",)),
    (r"^device$|_device$", ("cpu",)),
)
LIKELY_SIZES: tuple[tuple[str, tuple[int, ...]], ...] = (
    (r"^(b|bs|bsz|n?_?batch\w*)$", (2, 6)),
    (r"(kv|key_?value).*h|^h_?kv$|^g$|groups?$", (2,)),
    (r"^(h|nh|n_?heads?|heads|num_heads|num_attention_heads|nhead|hq|h_?q)$", (4,)),
    (r"top_?k|per_tok", (2,)),
    (r"spatial_?(dims?|ndim)|^n_?dims?$", (2, 3)),
    (r"experts?$|^e$", (4, 6)),
    (r"vocab", (11, 13)),
    (
        r"^([dc]|dim|hd|d_?[kvm]|d_?h(ead)?|.*(_dim|hidden\w*|size|width|chan(nel)?s?|feat(ure)?s?|filters?|model))$",
        (8, 16, 12, 20),
    ),
)  # fmt: skip
"""Sizes that go with names: heads divide widths, widths have halves."""
HEADS = (
    r"^x?([qkv]|query|key|value)(?!\w*(mask|pad|len|pos|_ids?$|index|bias|scale))(_|$)"
    r"|^(queries|keys|values)$"
)
"""Queries, keys and values: split into heads, more often than not."""
_WORDS = ("first", "second", "first,\nthen:2")
"""For a text of which nothing else is known: a key, and one that is cut into pieces."""
_SIZES_OF = r"(^|_)(dim(ension)?s?|shape|sizes?|axes|perm)$"
"""What collects whole numbers: ``*dims``."""
_UNREAD = r"^_|^unused"
_ENDS_OF_PACKED = r"^cu_?(seq|len)|cumulative_\w*len|^cum_\w*len|indptr|row_?(ptr|splits)"
_FURTHER_COUNTS = (3, 6, 5)
"""An odd one and no powers of two, for branches that those reach alone."""
_AXIS = r"(^|_)(dim|axis)$"
_AXES = (-1, 2, 1, 0)
_NEAR = range(-4, 4)
"""Defaults of what is an axis, and no width."""
# Every symbol has its own size, so that a wrong axis cannot pass by coincidence.
WIDTH = 8
_CORNERS = 4
_COUNTED = r"^n$|^n_|num|experts|heads|classes|channels|dim"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the function to call."""

    name: str
    annotation: str
    default: object
    keyword_only: bool = False
    spread: bool = False
    """Whether it collects what is passed beyond the others: ``*features``."""

    @property
    def has_default(self) -> bool:
        """Whether the call may leave it out."""
        return self.default is not inspect.Parameter.empty


class Told(NamedTuple):
    """What the text of a function says of its arguments beside its signature."""

    linked: tuple[tuple[str, str], ...] = ()
    """Those that must be computed from others, as gradients by these are asked for."""
    options: tuple[Parameter, ...] = ()
    """What is read of ``**kwargs``."""


TOLD_NOTHING = Told()


def read_told(function: ast.FunctionDef | ast.AsyncFunctionDef | None) -> Told:
    """Read what ``Told`` holds."""
    if function is None:
        return TOLD_NOTHING
    given = function.args
    names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    options = [
        Parameter(
            name, "", inspect.Parameter.empty if d is None else _read_plain(d), keyword_only=True
        )
        for name, d in list_options(function)
        if name not in names
    ]
    return Told(list_differentiated(function, names), tuple(options))


def _read_plain(node: ast.expr) -> object:
    """Return the value of a literal; None for what is computed."""
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError, TypeError):
        return None


def list_parameters(signature: inspect.Signature, *, spread: bool = False) -> list[Parameter]:
    """Return the named parameters, with ``spread`` also what collects several: ``*features``.

    That is empty unless something else is tried. What goes on as ``*args, **kwargs`` is left empty.
    """
    found: list[Parameter] = []
    spread &= all(p.kind is not p.VAR_KEYWORD for p in signature.parameters.values())
    for p in signature.parameters.values():
        said = "" if p.annotation is p.empty else _text(p.annotation)
        if p.kind is p.VAR_POSITIONAL and spread and not re.search(_UNREAD, p.name):
            of = said or ("int" if re.search(_SIZES_OF, p.name) else "Tensor")
            found.append(Parameter(p.name, f"tuple[{of}, ...]", (), spread=True))
        elif p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD}:
            kept = isinstance(p.default, dict | list | set)  # a call may write into it
            default = copy.copy(p.default) if kept else p.default
            found.append(Parameter(p.name, said, default, p.kind is p.KEYWORD_ONLY))
    return found


def see_through(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return what a wrapper calls that takes anything and does not say what it wraps.

    As ``def inner(model, *args, **kwargs)`` around a function of its own does.
    """
    try:
        known = inspect.unwrap(function)
        kinds = {p.kind for p in inspect.signature(known).parameters.values()}
        held = [cell.cell_contents for cell in getattr(known, "__closure__", None) or ()]
    except (TypeError, ValueError):  # nobody knows what it takes, or a cell is empty
        return function
    inner = [f for f in held if inspect.isfunction(f)]
    passes_on = kinds >= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}
    return see_through(inner[0]) if passes_on and len(inner) == 1 else function


def _text(annotation: object) -> str:
    if isinstance(annotation, type):
        return annotation.__name__
    return str(annotation)


def find_named(table: Table, name: str) -> tuple[object, ...]:
    """Return the values of the first pattern that a name matches."""
    return next((values for pattern, values in table if pattern.search(name)), ())


def guess_scalars(parameter: Parameter, widths: Sequence[int] = ()) -> list[Spec]:
    """Return guesses that are no tensors: by annotation if there is one, else by name."""
    name, annotation = parameter.name.lower(), parameter.annotation
    found: list[object] = []
    flagged = isinstance(parameter.default, bool) or re.search(r"\bbool\b", annotation)
    if flagged or re.search(FLAGS, name):
        found += [False, True]
    if re.search(r"\bfloat\b", annotation) or (not annotation and find_named(FLOATS, name)):
        found += find_named(FLOATS, name) or (0.5, 2.0)
    if re.search(r"\bint\b", annotation) or (not annotation and find_named(SIZES, name)):
        near = type(parameter.default) is int and parameter.default in _NEAR
        found += _AXES if near and re.search(_AXIS, name) else ()
        found += [*(find_named(SIZES, name) or (2, 8, 4, 1)), *widths, *_FURTHER_COUNTS]
    if re.search(r"\bdtype\b", annotation) or (not annotation and name == "dtype"):
        found += [torch.float32, torch.bfloat16]
    if re.search(r"\bdevice$", annotation):
        found.append(torch.device("cpu"))
    if re.search(r"\bstr\b", annotation) or (not annotation and find_named(TEXTS, name)):
        found += find_named(TEXTS, name) or (() if parameter.has_default else _WORDS)
    if listed := re.search(r"\bLiteral(\[[^\[\]]*\])", annotation):
        found[:0] = _read_list(listed[1])
    specs: list[Spec] = []
    for value in found:
        if not any(
            type(value) is type(s.value) and value == s.value for s in specs if isinstance(s, Value)
        ):
            specs.append(Value(value))
    return specs


def _read_list(text: str) -> list[object]:
    """Return what stands in ``["src", "dst"]``; nothing where that is no list of plain values."""
    try:
        return list(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError):
        return []


def guess_ends(name: str, shapes: Sequence[tuple[int, ...]]) -> list[Spec]:
    """Return the ends of sequences that are packed, for a name that says so: ``cu_seqlens``."""
    rows = [shape for shape in shapes if len(shape) == 1] if shapes else [(4,), (3,)]
    known = rows if re.search(_ENDS_OF_PACKED, name.lower()) else []
    return [Tensor(shape, "int", WIDTH + 1, rises=True, sound=True) for shape in known]


def tie_ends(specs: Mapping[str, Spec]) -> Mapping[str, Spec]:
    """Return sequences that end where that ends which they are packed in.

    ``q (total, H, D), cu_seqlens_q (N + 1)``, and ``total`` itself.
    """
    ends = {n: s for n, s in specs.items() if isinstance(s, Tensor) and s.rises and s.kind == "int"}
    if not ends:
        return specs
    whole = {n: s.value for n, s in specs.items() if isinstance(s, Value) and n.startswith("total")}
    other = {n: s for n, s in specs.items() if isinstance(s, Tensor) and s.shape and n not in ends}
    named = sorted(other.items(), key=lambda item: -len(item[1].shape))
    sizes = whole | {n: next((size for size in s.shape if size != 1), 1) for n, s in named}
    tied: dict[str, Spec] = {}
    for name, spec in ends.items():
        own = [size for n, size in sizes.items() if n.startswith(name.rpartition("_")[2])]
        most = next(iter((*own, *sizes.values())), None)
        tied[name] = spec if type(most) is not int else replace(spec, low=0, high=most + 1)
    return {**specs, **tied}


def guess_attribute(name: str) -> object:
    """Return what an attribute of this name may be.

    Raises:
        AttributeError: nobody knows.

    """
    lower = name.lower()
    if re.search(FLAGS, lower):
        return False
    for table in (FLOATS, TEXTS, SIZES):
        values = find_named(table, lower)
        if values:
            return values[0]
    raise AttributeError(name)


def is_default(spec: Spec | None) -> bool:
    """Say whether an argument is left out of the call."""
    return isinstance(spec, Value) and not spec.given


def vary_default(parameter: Parameter) -> list[Spec]:
    """Return what may be passed in place of a default that is a number or a flag."""
    default = parameter.default
    if isinstance(default, bool):
        return [Value(not default)]
    if isinstance(default, torch.dtype):
        other = torch.bfloat16 if default == torch.float32 else torch.float32
        return [Value(other)]
    if not isinstance(default, int | float):
        return []
    known = [s for s in guess_scalars(parameter) if isinstance(s, Value) and s.value != default]
    own = [s for s in known if type(s.value) is type(default)]
    return [*own[:3], Value(default * 2 or type(default)(1))]


def read_default_sizes(function: ast.stmt | None) -> dict[str, int]:
    """Return the sizes that a call or an object is made with unless others are given."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return {}
    pairs = list_defaults(function.args).items()
    constants = ((name, d.value) for name, d in pairs if isinstance(d, ast.Constant))
    return {name: value for name, value in constants if type(value) is int and value > 1}


def name_sizes(shape: tuple[str, ...], given: Mapping[str, int]) -> tuple[str, ...]:
    """Return ``(n, dim)`` for ``(n, 8)``, where the object is made with ``dim=8`` by default.

    Boxes have four corners and colours are three, whatever the stride is.
    """
    numbers = [str(value) for value in given.values()]
    sized = {n: v for n, v in given.items() if v > _CORNERS or re.search(_COUNTED, n)}
    names = {str(value): n for n, value in sized.items() if numbers.count(str(value)) == 1}
    return tuple(names.get(size, size) for size in shape)


def find_said_kind(annotation: str) -> str:
    """Return what ``torch.LongTensor`` or ``BoolTensor`` says; nothing where it may be any."""
    whole = re.search("Long|Int", annotation)
    return "int" if whole else "bool" if "Bool" in annotation else ""
