"""A rule: two PyTorch functions that compute the same, and when to exchange them.

``Form.pattern`` and ``Form.replacement`` are ordinary functions over tensors. They are the
documentation, the graph that the matcher looks for, the text that the rewriter writes and the
pair that the verifier runs; nothing states a rule a second time.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

T = TypeVar("T")


class Safety(str, Enum):
    """What the tool may do with a finding."""

    SAFE = "safe"
    """Equal for every input that the eager code accepts, up to rounding."""
    CONDITIONAL = "conditional"
    """Equal when the named conditions hold; written only with ``--allow CONDITION``."""
    ADVICE = "advice"
    """Never written by the tool."""


class Draw(Protocol):
    """Where ``inputs`` takes its choices from: hypothesis in tests, a seed in the verifier."""

    def integer(self, low: int, high: int) -> int:
        """Return an int in [low, high]."""

    def choice(self, options: Sequence[T]) -> T:
        """Return one of ``options``."""

    def floats(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor of ordinary values, now and then with zeros or tiny rows."""

    def wild(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Return a tensor that also holds NaN, infinities and signed zeros."""

    def integers(self, *shape: int, low: int, high: int) -> torch.Tensor:
        """Return an int64 tensor with entries in [low, high], duplicates included."""

    def booleans(self, *shape: int) -> torch.Tensor:
        """Return a bool tensor."""


class Site(Protocol):
    """What is known about the pattern variables at one place; ``None`` means unknown."""

    def literal(self, name: str) -> object:
        """Return the literal that a variable matched, ``None`` if it is no literal."""

    def is_argument(self, name: str) -> bool:
        """Tell whether the value is an argument of the function."""

    def is_plain(self, name: str) -> bool | None:
        """Tell whether the value is a setting: a literal, a parameter, an attribute from one."""

    def same_device(self, first: str, second: str) -> bool | None:
        """Tell whether nothing suggests that two tensors are on different devices."""

    def ndim(self, name: str) -> int | None:
        """Return the number of dimensions of a tensor."""

    def size(self, name: str, dim: int) -> int | None:
        """Return the length of one dimension, if it is a known number."""

    def is_tensor(self, name: str) -> bool | None:
        """Tell whether the value is a torch tensor (not NumPy, a list, a number)."""

    def is_bool_tensor(self, name: str) -> bool | None:
        """Tell whether the value is a tensor of dtype bool."""

    def dtype(self, name: str) -> str | None:
        """Return the dtype of a tensor: ``float32``."""

    def is_number(self, name: str) -> bool | None:
        """Tell whether the value is a Python number."""

    def is_limit_of(self, name: str, tensor: str) -> bool | None:
        """Tell whether a number is the ``finfo(x.dtype).min`` or ``max`` of a tensor."""

    def is_centred(self, name: str) -> bool | None:
        """Tell whether a mean was subtracted to get the value."""

    def is_detached(self, name: str) -> bool | None:
        """Tell whether gradients are cut off on purpose (``.data``, ``.detach()``)."""

    def is_int(self, name: str) -> bool | None:
        """Tell whether the value is a Python int."""

    def same_dtype(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors have one dtype."""

    def same_ndim(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors have one number of dimensions."""

    def is_unique(self, name: str) -> bool | None:
        """Tell whether the entries along the last dimension are all different."""


@dataclass(frozen=True, slots=True)
class Condition:
    """Something that must hold at a site for a rewrite to be equal."""

    name: str
    """What ``--allow`` takes: ``same-dtype``."""
    text: str
    """One sentence that a user can decide on."""
    holds: Callable[[Site], bool | None]
    """True: proven at this site; False: the rewrite would be wrong; None: not known."""


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write the slow thing, and what to write instead.

    Parameters of ``pattern`` are pattern variables; those whose name starts with ``literal_``
    match only literals. ``replacement`` takes the same parameters.
    """

    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    inputs: Callable[[Draw], Mapping[str, Any]]
    """Arguments for both, by parameter name: shapes, dtypes and values worth trying."""
    conditions: tuple[Condition, ...] = ()


@dataclass(frozen=True, slots=True)
class Rewritten:
    """An example of a rule: the code before, and exactly what it becomes."""

    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Substitution:
    """One row of the affinity table or of the fusion table; the module docstring explains it.

    ``valid`` are look-alikes that must be left alone, ``rewritten`` those that must not.
    """

    id: str
    name: str
    """Names the slow pattern, and reads after "allow"."""
    summary: str
    table: str
    """``affinity``: slow operator -> friendly equivalent; ``fusion``: small operators -> one."""
    forms: tuple[Form, ...]
    """Tried in order; the first whose conditions are all proven wins, else the first possible."""
    replaces: tuple[str, ...]
    """Kernel Types that the eager code launches, backward included."""
    becomes: tuple[str, ...]
    """Kernel Types after the change."""
    passes: tuple[float, float]
    """How often the replacement reads or writes the largest tensor: forward, backward."""
    requires: str
    """Version from which the replacement exists: ``torch_npu>=2.1``."""
    valid: tuple[str, ...]
    rewritten: tuple[Rewritten, ...]
    launches_together: tuple[tuple[str, ...], ...] = ()
    """Only worth it where the dump shows a kernel of each group at that line."""
