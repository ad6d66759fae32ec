"""Which operators treat rows by themselves, by their names in the dataflow."""

from __future__ import annotations

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.special import Op

ELEMENTWISE = operators.ELEMENTWISE
ALONG = {
    "all": 1, "amax": 1, "amin": 1, "any": 1, "argmax": 1, "argmin": 1, "argsort": 0, "chunk": 0,
    "cumprod": 0, "cumsum": 0, "log_softmax": 0, "logsumexp": 1, "max": 1, "mean": 1, "median": 1,
    "min": 1, "normalize": 0, "prod": 1, "softmax": 0, "sort": 0, "split": 0, "std": 1, "sum": 1,
    "topk": 0, "unbind": 1, "var": 1,
}  # fmt: skip
"""Those that work along one dimension ``dim``, and how many dimensions the result has fewer."""
SECOND = {"chunk": 1, "normalize": 1, "split": 1, "topk": 1}
"""How many arguments stand before that dimension."""
ALONG_LAST = frozenset({"argsort", "sort", "topk"})
"""Those that work along the last one where none is given."""
OVER_ALL = frozenset({"amax", "amin", "max", "mean", "min", "std", "sum", "var"})
"""Those that take several dimensions as well, and all of them where none is given."""
OF_FLAT = frozenset({"all", "any", "argmax", "argmin", "prod"})
"""Those that take one dimension alone, and the flat tensor where none is given."""
PAIRS = frozenset({"max", "min"})
"""Those among them that return values and positions, but where no dimension is given."""
ALWAYS_SEVERAL = frozenset({"chunk", "sort", "split", "topk", "unbind"})
SEVERAL = PAIRS | {"median", "sort", "topk"}
"""Those that return values and positions; ``max`` and ``median`` do so along a dimension."""
PARTS = frozenset({"chunk", "split", "unbind"})
"""Those that return a tuple of parts, along the first dimension where none is given."""
TURNING = {"flatten": 0, "squeeze": 1, "t": 0, "transpose": 2, "unsqueeze": 1}
"""Views of a row with its dimensions in another order, or another number: how many they name."""
NAMES_OF_TURNING: tuple[tuple[int, list[str | None]], ...] = (
    (0, []), (1, []), (2, []), (0, ["dim"]), (0, ["start_dim"]), (0, ["start_dim", "end_dim"]),
    (1, ["end_dim"]), (0, ["dim0", "dim1"]), (1, ["dim1"]),
)  # fmt: skip
"""How many of these dimensions may stand in order, and which have a name then."""
SHAPING = frozenset({"permute", "reshape", "view"})
"""Views of a row whose dimensions are all told."""
REPEATING = {"expand": -1, "repeat": 1}
"""Those that may repeat a row, and what leaves a dimension as it is."""
PRODUCTS: dict[str, tuple[int, ...]] = {
    "bmm": (3, 3), "dot": (1, 1), "matmul": (), "mm": (2, 2), "mv": (2, 1)
}  # fmt: skip
"""Products, and the dimensions that they ask their operands for, if they do."""

RANDOM = operators.RANDOM
NEW = ELEMENTWISE - {
    "bfloat16",
    "double",
    "float",
    "half",
    "int",
    "long",
    "bool",
    "detach",
    Op.CAST,
}
"""Their result shares no memory with the operands, whatever dtype that has."""
