"""A rule: two PyTorch functions that compute the same, and when to exchange them.

``Form.pattern`` and ``Form.replacement`` are ordinary functions over tensors. They are the
documentation, the graph that the matcher looks for, the text that the rewriter writes and the
pair that the verifier runs; nothing states a rule a second time.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import torch

T = TypeVar("T")

Activation = Callable[["torch.Tensor"], "torch.Tensor"]
"""Annotates a pattern variable that stands for a function out of a table of activations."""

Buffer: TypeAlias = "torch.Tensor"
"""Annotates a tensor that takes no gradient: nobody asks a replacement for it."""


class Spelling:
    """Which options ``either`` takes: the verifier tries all of them, and mixtures."""

    chosen = 0


def option(chosen: int, place: tuple[int, int], count: int) -> int:
    """Return which of ``count`` options the ``either`` at a line and column takes.

    The first choices take the same one everywhere, the later ones any.
    """
    if chosen < count:
        return chosen
    if sys.version_info < (3, 11):  # which does not know columns: the same all along a line
        place = place[0], 0
    return random.Random(f"{chosen} {place}").randrange(count)  # noqa: S311 - no secret


def either(*options: T) -> T:
    """Return one of several spellings of the same value; a pattern matches each of them."""
    caller = sys._getframe(1)  # noqa: SLF001 - where it stands tells one call from another
    line, column = caller.f_lineno, 0
    if sys.version_info >= (3, 11):
        first, _, column_, _ = list(caller.f_code.co_positions())[caller.f_lasti // 2]
        line, column = first or 0, column_ or 0
    return options[option(Spelling.chosen, (line, column), len(options))]


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

    def least_ndim(self, name: str) -> int:
        """Return how many dimensions a tensor has at least."""

    def size(self, name: str, dim: int) -> int | None:
        """Return the length of one dimension, if it is a known number."""

    def is_tensor(self, name: str) -> bool | None:
        """Tell whether the value is a torch tensor (not NumPy, a list, a number)."""

    def is_bool_tensor(self, name: str) -> bool | None:
        """Tell whether the value is a tensor of dtype bool."""

    def dtype(self, name: str) -> str | None:
        """Return the dtype of a tensor: ``float32``."""

    def is_test_of(self, name: str, tensor: str) -> bool | None:
        """Tell whether a mask compares the elements of a tensor: then it has its shape."""

    def covers(self, name: str, tensor: str) -> bool | None:
        """Tell whether a value has all dimensions of a tensor: it is computed with them."""

    def is_number(self, name: str) -> bool | None:
        """Tell whether the value is a Python number."""

    def is_limit_of(self, name: str, tensor: str) -> bool | None:
        """Tell whether a number is the ``finfo(x.dtype).min`` or ``max`` of a tensor."""

    def is_centred(self, name: str) -> bool | None:
        """Tell whether a mean was subtracted to get the value."""

    def is_detached(self, name: str) -> bool | None:
        """Tell whether gradients are cut off on purpose (``.data``, ``.detach()``)."""

    def is_projected(self, name: str) -> bool:
        """Tell whether a linear layer computes the value, or the whole that it is a part of."""

    def is_power_of_length(self, name: str, weight: str, power: float) -> bool:
        """Tell whether a number is made as the power of the length that a weight is made with."""

    def is_buffer(self, name: str) -> bool | None:
        """Tell whether a tensor belongs to a module and takes no gradient."""

    def is_int(self, name: str) -> bool | None:
        """Tell whether the value is a Python int."""

    def same_dtype(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors have one dtype."""

    def same_ndim(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors have one number of dimensions."""

    def more_dims(self, first: str, second: str) -> int | None:
        """Return how many dimensions the first tensor has more than the second."""

    def is_called_index(self, name: str) -> bool:
        """Tell whether the name of a value speaks of positions: ``idx``, ``keep_ids``."""

    def is_position(self, name: str) -> bool | None:
        """Tell whether a tensor holds positions that do not count from the end."""

    def is_indicator(self, name: str) -> bool | None:
        """Tell whether a tensor holds nothing but zeros and ones: it is a mask, or was one."""

    def is_made_like(self, name: str) -> bool:
        """Tell whether a tensor has the dtype of another: ``torch.zeros(n, dtype=x.dtype)``."""

    def is_device(self, name: str) -> bool | None:
        """Tell whether the value is a device, not a dtype or a tensor."""

    def is_unique(self, name: str) -> bool | None:
        """Tell whether the entries along the last dimension are all different."""

    def is_sinusoid(self, name: str) -> bool | None:
        """Tell whether the value is a sine or cosine that nothing has scaled."""

    def same_projection(self, first: str, second: str) -> bool | None:
        """Tell whether two tensors are made by layers of one width."""

    def number(self, name: str) -> float | None:
        """Return the value of a number that is written out; ``finfo(...).min`` as of float16."""

    def is_scalar(self, name: str) -> bool | None:
        """Tell whether the value is a Python number: a setting or computed from lengths."""

    def is_boolean_bias(self, name: str) -> bool | None:
        """Tell whether what is added to scores holds nothing but 0 and very negative numbers."""

    def is_zero_or_one(self, name: str) -> bool | None:
        """Tell whether a mask holds nothing but 0 and 1."""

    def leaves_a_key(self, name: str, *, kept: bool) -> bool | None:
        """Tell whether a mask leaves every query a key; ``kept``: it marks those that are left."""

    def same_heads(self, *names: str, heads: int = 1) -> bool | None:
        """Tell whether tensors agree in batch size and number of heads, without broadcasting.

        ``heads`` is the dimension of the heads.
        """

    def is_one_of_several(self) -> bool:
        """Tell whether a setting of transformers chooses this function among implementations."""

    def has_fused_branch(self) -> bool:
        """Tell whether the function computes attention with a fused operator as well."""

    def activation(self, name: str) -> str | None:
        """Return which function an activation out of a table is: ``silu``.

        ``silu?`` is the default of a parameter: what it is unless it is told otherwise.
        """

    def setting(self, name: str, parameter: str) -> str | None:
        """Return the code of an argument of a submodule's constructor, "" for its default."""

    def normalized_dims(self, name: str) -> int | None:
        """Return over how many dimensions a norm among the submodules computes its mean."""

    def brings_no_decay(self) -> bool:
        """Tell whether the first argument of a call holds parameters, no groups with a decay."""

    def listed(self, name: str) -> int | None:
        """Return how many tensors a list names one by one, ``None`` if it is none such."""

    def operator(self, name: str) -> str:
        """Return the operation that computed the value: ``add``, ``module:Dropout``."""

    def mentions_beside(self, *words: str) -> bool:
        """Tell whether the class, or without one the module, uses one of these names."""

    def mentions(self, *words: str) -> bool:
        """Tell whether the module, or one of a base class, uses one of these names, wherever."""

    def arguments(self, method: str) -> Sequence[Mapping[str, str]]:
        """Return the arguments of each call of a method there, as they are written."""

    def is_cast_back(self, name: str) -> bool:
        """Tell whether what the pattern computes is cast to the dtype of a value that it reads."""

    def may_be_batch(self, name: str) -> bool:
        """Tell whether code shows more than two dimensions: ``x.mT``, ``x.transpose(1, 2)``."""

    def finds_for_others(self, mask: str) -> bool:
        """Tell whether the places of a mask are wanted by others too: ``x[at] = 0; y[at]``."""

    def is_scaled(self) -> bool | None:
        """Tell whether something multiplies what the pattern computes, cast or not."""

    def called(self, name: str, *, in_test: bool = False) -> Sequence[str]:
        """Return what a value is called: by its own name, or that of what it is a part of.

        Where it is a comparison, ``in_test`` asks for what is compared.
        """

    def runs_often(self) -> bool:
        """Tell whether it runs in each step, not once per call of the program or on the host."""

    def runs_in_loop(self) -> bool:
        """Tell whether it stands in a loop, or was recorded: several times in one call."""

    def is_left_out(self, name: str) -> bool:
        """Tell whether a call in the module leaves an argument away, which is None then."""

    def is_without_gradients(self) -> bool | None:
        """Tell whether the code says that no gradient is wanted (``torch.no_grad``)."""


def is_activation(site: Site, name: str, *wanted: str) -> bool | None:
    """Tell whether an activation is one of the functions ``wanted``."""
    found = site.activation(name)
    if found is None or found in {f"{one}?" for one in wanted}:
        return None
    return found in wanted


def all_hold(answers: Iterable[bool | None]) -> bool | None:
    """Return False if one is, else None if one is unknown, else True."""
    given = set(answers)
    return False if False in given else None if None in given else True


@dataclass(frozen=True, eq=False, slots=True)
class Condition:
    """Something that must hold at a site for a rewrite to be equal."""

    name: str
    """What ``--allow`` takes: ``same-dtype``."""
    text: str
    """One sentence that a user can decide on."""
    holds: Callable[[Site], bool | None]
    """True: proven at this site; False: the rewrite would be wrong; None: not known."""
    meaning: str = ""
    """What the verifier checks on the operands, where the name has several meanings."""
    time_alone: bool = False
    """Whether it is about time: the replacement computes the same where it does not hold."""

    @property
    def excludes_gradients(self) -> bool:
        """Whether it says that no gradient is needed: operators for inference have none."""
        return self.name == "inference"


@dataclass(frozen=True, eq=False, slots=True)
class Form:
    """One way to write the slow thing, and what to write instead.

    Parameters of ``pattern`` are pattern variables; those whose name starts with ``literal_``
    match only literals. ``replacement`` takes the same parameters; what it names before it returns
    has a name in the new code too.
    """

    pattern: Callable[..., Any]
    replacement: Callable[..., Any]
    inputs: Callable[[Draw], Mapping[str, Any]]
    """Arguments for both, by parameter name: shapes, dtypes and values worth trying."""
    conditions: tuple[Condition, ...] = ()
    passes: tuple[float, float] | None = None
    """Those of the rule and of what this form copies besides: forward, backward."""
    launches: tuple[int, int] = (1, 1)
    """Kernels of the replacement: forward, backward."""
    only_proven: bool = False
    """Harder to read than another form with one condition more: only where nothing is left open."""
    one_line: bool = False
    """Only where the new statement takes one line, in a file that does not use einops."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """An example of a rule: the code before, and exactly what it becomes."""

    before: str
    after: str


@dataclass(frozen=True, eq=False, slots=True)
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
    """Versions and chips that have and need it: ``torch_npu>=2.1,<2.14; chip A2 A3``."""
    valid: tuple[str, ...]
    rewritten: tuple[Rewritten, ...]
    launches_together: tuple[tuple[str, ...], ...] = ()
    """Only worth it where the dump shows a kernel of each group at that line."""
    floats_only: bool = False
    """Whether it is about floating point tensors, as all of the fusion table is."""
    advice: str = ""
    """If given, the tool only points at the code, and this says why it does not change it."""
    needs_whole: bool = False
    """Nothing is gained, and nothing said, where a slow operator's result is needed besides."""
    search: str = ""
    """The search that finds it, where no pattern of one value can: the functions of ``forms`` then
    show and prove what is done. One of ``rewriters.edit.statements.searches``; or ``loops``, which
    reads loops as functions of their variable (``rewriters.edit.loops``): then all forms have the
    conditions of the rule."""
    measured_only: bool = False
    """Whether it is said only where a dump shows it, or where it is asked for by name.

    What it gains depends on sizes that no source tells, or it rests on an undocumented operator.
    """
    unseen: str = ""
    """What no run of the code can show, if that is what it is about: two versions with the same
    values are not proven equivalent then."""
    files: tuple[str, ...] = ()
    """What the names of the files end with that it is about, where they are no Python: ``.sh``."""
    once: bool = False
    """Whether it is about the project, and said at its first place alone."""
    silent: str = ""
    """Why runs outside ``requires`` do not need the change, if that is so."""
