"""What the operators of torch do: the one table, ``operators.txt``, and what is derived from it.

An operator without a row still works where user code and pattern spell its call alike:
``torch.new_thing(x, 2)`` is read as a pure function of its arguments. A row adds that keywords,
defaults and other names are the same (``F.relu6(x)``, ``F.relu6(x, inplace=False)``), that methods
are known (``x.hypot(y)``), and what the facts about shapes, types and memory need.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from npufix.rewriters.graph.nodes import Node

REQUIRED = object()
"""The default of a parameter that has none."""
_ROW = re.compile(r"(?P<name>[\w.]+)\((?P<parameters>.*)\)(?:  (?P<words>.*))?")
_AS_WRITTEN = "..."
# Modules whose functions are other ones than those of this name in ``torch``.
_OWN_NAMES = frozenset({"fft", "linalg", "special"})


@dataclass(frozen=True, slots=True)
class Operator:
    """A row of the table."""

    name: str
    parameters: str
    """As torch declares them; "..." if the arguments stay as they are written."""
    words: frozenset[str]

    def values(self, key: str) -> list[str]:
        """Return what stands behind ``key=`` among the words."""
        return sorted(w.removeprefix(f"{key}=") for w in self.words if w.startswith(f"{key}="))


def _rows() -> Iterator[Operator]:
    text = files(__package__ or "").joinpath("operators.txt").read_text(encoding="utf-8")
    for line in text.splitlines():
        row = _ROW.fullmatch(line)
        if row is not None:
            yield Operator(row["name"], row["parameters"], frozenset((row["words"] or "").split()))


TABLE: Mapping[str, Operator] = {row.name: row for row in _rows()}
_ALIASES = {alias: row.name for row in TABLE.values() for alias in row.values("aka")}
CASTS = {row.name: dtype for row in TABLE.values() for dtype in row.values("to")}
"""Methods that cast, and to what: ``x.half()``."""


def _having(*words: str) -> frozenset[str]:
    return frozenset(row.name for row in TABLE.values() if row.words.issuperset(words))


RANDOM = _having("random")
FRESH = _having("fresh")
NEW = _having("new") | FRESH
VIEWS = _having("view")
KEEPS = _having("keeps")
RESHAPES_IN_PLACE = _having("reshapes")
STATEFUL = _having("stateful")
COMMUTATIVE = _having("commutative")
PAIRS = _having("pair")
SPREAD = _having("spread")
SYMBOLS = _having("symbol")
PRODUCTS = _having("product")
ELEMENTWISE = frozenset(
    {"abs", "acos", "add", "and", "asin", "atan", "atan2", "bfloat16", "bool", "ceil", "clamp",
     "clip", "cos", "cosh", "detach", "div", "double", "elu", "eq", "erf", "exp", "expm1", "fill",
     "float", "floor", "floordiv", "frac", "ge", "gelu", "gt", "half", "hardswish", "hypot", "int",
     "invert", "isfinite", "isinf", "isnan", "le", "leaky_relu", "lerp", "log", "log10", "log1p",
     "log2", "logical_and", "logical_not", "logical_or", "logsigmoid", "long", "lt", "maximum",
     "minimum", "mish", "mod", "mul", "nan_to_num", "ne", "neg", "or", "pow", "reciprocal", "relu",
     "relu6", "round", "rsqrt", "sigmoid", "sign", "silu", "sin", "sinh", "softplus", "sqrt",
     "square", "sub", "tan", "tanh", "trunc", "where", "xor", Op.CAST}
)  # fmt: skip
"""One element of the result needs one element of each operand, at the same place."""
SAME_SHAPE = _having("same-shape") | {Op.CAST}
BROADCAST = _having("broadcast")
BOOLEAN = _having("bool")
COMPARISONS = _having("bool", "symbol")
POSITIONS = _having("positions")
INTEGERS = _having("integers") | POSITIONS
TENSORS = _having("tensor")
OF_TENSORS_ONLY = _having("own")
FACTORIES = _having("factory")
TAKES_LENGTHS = _having("lengths")
MOVES = _having("moves")
TO_DEVICE = frozenset({"cuda", "npu", "to"})
"""Methods that bring a tensor to a device, which ``to`` may not name."""
PURE_METHODS = _having("method") | {a for a, op in _ALIASES.items() if "method" in TABLE[op].words}


def canonical_name(op: str) -> str:
    """Return the name of an operator in the graph: ``mul`` of ``multiply``, ``mul_`` in place."""
    if op in _ALIASES:
        return _ALIASES[op]
    plain = op.removesuffix("_")
    return f"{_ALIASES[plain]}_" if op != plain and plain in _ALIASES else op


def name_in(module: str, function: str) -> str:
    """Return what the table calls a function: that of ``torch.linalg`` is ``linalg.norm``."""
    owner = module.rpartition(".")[2]
    own = f"{owner}.{function}"
    return own if owner in _OWN_NAMES or own in TABLE else function


def other_names(op: str) -> tuple[str, ...]:
    """Return the other names of an operator, without their module."""
    row = TABLE.get(op)
    return () if row is None else tuple(a.rpartition(".")[2] for a in row.values("aka"))


@cache
def parameters(op: str) -> Mapping[str, Hashable] | None:
    """Return the parameters with their defaults, the tensor first; ``None`` if it has no row.

    ``None`` also where the arguments stay as they are written.
    """
    row = TABLE.get(op) or TABLE.get(op.removesuffix("_"))
    if row is None or row.parameters == _AS_WRITTEN:
        return None
    spec = ast.parse(f"def f({row.parameters}): ...").body[0]
    assert isinstance(spec, ast.FunctionDef)  # noqa: S101 - for the type checker
    names = [arg.arg for arg in spec.args.args]
    found: dict[str, Hashable] = dict.fromkeys(names, REQUIRED)
    given = spec.args.defaults
    found |= zip(names[len(names) - len(given) :], map(ast.literal_eval, given), strict=True)
    if spec.args.vararg is not None:
        found[f"*{spec.args.vararg.arg}"] = REQUIRED
    return found


def signature(op: str) -> Mapping[str, Hashable] | None:
    """Return the parameters behind the tensor."""
    found = parameters(op)
    return None if found is None else {name: found[name] for name in list(found)[1:]}


@cache
def inplace_position(function: str) -> int | None:
    """Return where a function of torch takes ``inplace`` if it is not named."""
    names = list(parameters(function) or ())
    return names.index("inplace") if "inplace" in names else None


def aten_names(op: str) -> tuple[str, ...]:
    """Return the names under which the profiler records an operator."""
    row = TABLE.get(op)
    known = row.values("aten") if row is not None else []
    names = known[0].split(",") if known else [op.replace(".", "_")]
    return tuple(f"aten::{name}" for name in names)


def find_missing(root: Node) -> list[str]:
    """Return the rows that ``operators.txt`` lacks for the operators of a pattern.

    ``root`` is the graph of the pattern: ``find_missing(pattern_of(form.pattern).root)``.
    """
    return sorted({row for node in root.walk() for row in _missing(node)})


def _missing(node: Node) -> Iterator[str]:
    if node.op == Op.CALL and node.args[0].op == Op.ATTR:
        name = str(node.args[0].value)  # ``x.hypot(y)``: a method that may do anything
        row = TABLE.get(name)
        known = row.parameters if row is not None else _guess(node.args[1:])
        yield f"{name}({known})  {' '.join(sorted({'method'} | (row.words if row else set())))}"
    elif node.op.isidentifier() and not node.op.startswith("npu_") and not _is_known(node.op):
        yield f"{node.op}({_guess(node.args[1:])})"


def _is_known(op: str) -> bool:
    return op in TABLE or op.removesuffix("_") in TABLE or op in set(Op)


def _guess(args: tuple[Node, ...]) -> str:
    return ", ".join(["input", *(f"other{n}" for n in range(1, len(args) + 1))])
