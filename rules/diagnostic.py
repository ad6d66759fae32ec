"""A rule about the run as a whole: it reads the recording and says what to change beside code."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from collections.abc import Set as AbstractSet
    from typing import Any

    import pandas as pd

    from npufix.profiling_parsers.profile import Environment
    from npufix.profiling_parsers.signals import Signals


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Recording:
    """What a diagnostic looks at: a profile whose rows are led to the lines of the user.

    ``kernels``, ``host_ops`` -- as in ``Profile`` (collectives too: the device is not idle while
    they run), only those of the steady steps, with ``path`` (str, "" if unknown), ``line`` (int64)
    and ``function`` (str) of the user's innermost frame.
    ``steps`` -- the steady steps of ``Profile.steps``, empty if the dump does not say.
    """

    kernels: pd.DataFrame
    host_ops: pd.DataFrame
    steps: pd.DataFrame
    step_ns: int
    """Length of the average steady step, or of the whole recording."""
    step_count: int
    """Number of steady steps, at least one."""
    signals: Signals
    environment: Environment
    recorded_steps: int = 0
    """Number of steps that sums without times, as ``signals.apis``, are over: all that the dump
    holds, steady or not; 0 as many as ``step_count``."""
    outliers: dict[int, int] = field(default_factory=dict)
    """Length of the steps that no average holds because they are far longer, by number."""
    outlier_ops: pd.DataFrame | None = None
    """As ``host_ops``, of those steps."""
    kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What several rules ask alike: see the function ``kept``."""


def keep_result(
    function: Callable[Concatenate[Recording, Parameters], Result],
) -> Callable[Concatenate[Recording, Parameters], Result]:
    """Have a function remember what it said of a recording; nobody may change what it returns.

    All other arguments must be hashable.
    """

    @wraps(function)
    def asked(
        recording: Recording, /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        key = (function, args, tuple(sorted(kwargs.items())))
        if key not in recording.kept:
            recording.kept[key] = function(recording, *args, **kwargs)
        found: Result = recording.kept[key]
        return found

    return asked


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's code that takes part, and what it costs per step."""

    path: str
    line: int
    function: str
    cost_ns: int
    calls: int


@dataclass(frozen=True)
class Observation:
    """One thing that was found: a fact with its numbers, no prose. Times are per step."""

    what: str
    """One sentence with the numbers: "Free is 31.4 % of the step (12.3 of 39.2 ms)"."""
    evidence: tuple[tuple[str, str], ...] = ()
    """Name and value of each further number, traceable to the dump."""
    cost_ns: int = 0
    """What it takes now."""
    of_ns: int = 0
    """What ``cost_ns`` is a share of, 0 the average step: outliers are in none."""
    saving_ns: tuple[int, int] | None = None
    """Low and high; ``None`` where nothing in the dump tells."""
    basis: str = ""
    """Why the saving is what it is."""
    places: tuple[Place, ...] = ()
    """The most expensive first."""
    kernels: AbstractSet[int] = field(default_factory=frozenset)
    """Index labels of ``Recording.kernels`` whose time would go."""
    instead: tuple[int, ...] | None = None
    """How many kernels take their place, over all steady steps, and the least and the most that
    these take, ns, and what is likely where that is not the middle; ``None`` where the dump does
    not say or none does."""
    instead_launches: int = 1
    """How many launches each of these is, forward: a cast, then the operator."""
    instead_backward: tuple[int, ...] | None = None
    """The same times of as many kernels of their gradient."""
    instead_launches_backward: int = 1
    likely_ns: int | None = None
    """What is expected of ``saving_ns``; ``None`` its middle."""
    goes: bool = False
    """Whether what is saved is the time of kernels that are no longer launched (casts there and
    back), not that all of them are faster (products in half precision)."""
    dropped: AbstractSet[int] = field(default_factory=frozenset)
    """Which of ``kernels`` are not launched any more, whatever is saved of their time: the fused
    kernel in the place of the others does their work as well."""
    host_ops: frozenset[int] = field(default_factory=frozenset)
    """Index labels of ``Recording.host_ops`` that would not wait any more; beside ``sooner_ns``
    those that are the pause."""
    stays_ns: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    """How long the device is still busy, over the kernels that it launches, with what ``host_ops``
    waited for, as expected and at worst, by their index label."""
    at_least_ns: int = 0
    """What a step is expected to take at least: as often as so many workers make a batch."""
    at_worst_ns: int = 0
    """The same where as few more of them as can be are all that the host has cores for."""
    outliers_ns: int = 0
    """By how much the average of all steps is longer than of those that are replayed."""
    sooner_ns: Mapping[int, int] = field(default_factory=dict)
    """How much sooner the host would launch a kernel, by its index label: pauses that go.

    By ``~label``, how much sooner a step ends behind its last kernel."""
    freed_ns: Mapping[int, int] = field(default_factory=dict)
    """How much sooner the device would be free for a kernel, by its index label: without a copy
    before it."""
    hurries: AbstractSet[int] = field(default_factory=frozenset)
    """Index labels of the kernels that the host would launch in no time: what it takes before them
    is what makes the device wait."""
    hidden: AbstractSet[int] = field(default_factory=frozenset)
    """Index labels of tasks that would run beside others: copies on a stream of their own."""
    idle_ns: int = 0
    """How much of ``cost_ns`` the device waits for the launches of ``kernels``."""
    is_idle: bool = False
    """Whether ``cost_ns`` is time in which the device waits, not time of kernels."""
    is_work: bool = False
    """Whether it is the work that the program is there for: told behind all that is beside it."""
    is_symptom: bool = False
    """Whether it says that the device waits, not for what: told behind a cause that explains it."""
    is_divided: bool = False
    """Whether no other idle time of such findings is the same: waits for a batch, for a value, for
    a copy, for a collection, and pauses of the host beside them."""
    advice: str = ""
    """What to do in this run, where that is not ``Diagnostic.advice`` as it stands: without what
    is set already."""
    gpu_advice: str = ""
    """The same where the recording is of a GPU, instead of ``Diagnostic.gpu_advice``."""


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One row of the settings table; the module docstring explains it."""

    id: str
    name: str
    """Names the pattern, and reads after "allow": ``host-bound-step``."""
    summary: str
    advice: str
    """What to do: settings and commands as they are typed, the cheapest first."""
    check: Callable[[Recording], Iterable[Observation]]
    table: str = "settings"
    requires: str = ""
    """Versions and chips on which the advice can be followed, "" for any."""
    gpu_advice: str = ""
    """What to do where the recording is of a GPU; "" where the rule is about NPUs alone."""
    yields: int = 0
    """Left out where findings that yield less are about most of its time: 0 names a line or a
    setting, 1 what a sequence of kernels computes, 2 only which Type is hot."""
