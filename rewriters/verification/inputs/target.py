"""The function to verify, in one version of the module, and calls of it."""

from __future__ import annotations

import inspect
import math
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from npufix.rewriters.verification.calls.device import instance_to_device, to_device
from npufix.rewriters.verification.calls.leaves import go_through
from npufix.rewriters.verification.calls.named_device import mean_device
from npufix.rewriters.verification.calls.nudges import link, nudge, nudge_state
from npufix.rewriters.verification.calls.observe import CALL_S, PreparedCall
from npufix.rewriters.verification.calls.surroundings import Surroundings
from npufix.rewriters.verification.calls.values import (
    Flavour,
    MadeArgument,
    Spec,
    Value,
    list_tensors,
    map_items,
    materialise,
)
from npufix.rewriters.verification.inputs.histories import live_through
from npufix.rewriters.verification.inputs.load import Loaded, LoadError
from npufix.rewriters.verification.inputs.objects.copying import copy_object
from npufix.rewriters.verification.inputs.objects.state import (
    cast_floats,
    cast_made,
    cast_object,
    find_constants,
    is_hooked,
    list_handed_out,
    list_registered,
    read_state,
    read_states,
)
from npufix.rewriters.verification.inputs.objects.weights import (
    bind_optimizers,
    fill_optimizers,
    leave_gradients,
    list_modules,
    list_weights,
    remember,
    take_steps,
)
from npufix.rewriters.verification.inputs.source.parameters import (
    TOLD_NOTHING,
    Parameter,
    Told,
    list_parameters,
    see_through,
    tie_ends,
)
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from npufix.rewriters.verification.inputs.recipes import Recipe

    Keeps = Callable[..., bool]


def _chosen(recipe: Recipe, values: Mapping[str, object]) -> Recipe:
    """Return a recipe by which these values are set."""
    given = {name for name, spec in recipe.arguments if isinstance(spec, MadeArgument)}
    paths: dict[str, object] = {}
    for name, value in values.items():
        first, _, rest = name.partition(".")
        if not rest:
            continue
        paths[name] = value
        # ``self.config.x`` may be read from the argument ``config`` while the object is made.
        if first == "self" and rest.partition(".")[0] in given:
            paths[rest] = value
        elif first == "self":
            paths |= {f"{argument}.{rest}": value for argument in given}
    return replace(recipe, chosen=tuple(paths.items()))


@dataclass(frozen=True, slots=True)
class Assignment:
    """Arguments, and the object to call on, under which the original runs."""

    SENT_OFTEN: ClassVar = True  # marks it for ``transport``: each version runs it in several ways
    recipe: Recipe | None
    specs: Mapping[str, Spec]

    def __str__(self) -> str:
        given = {n: s for n, s in self.specs.items() if not isinstance(s, Value) or s.given}
        return ", ".join(f"{name}={spec}" for name, spec in given.items())


@dataclass(frozen=True, slots=True)
class CallCase:
    """One call, fully determined but for the dtype."""

    assignment: Assignment
    flavour: Flavour = "ordinary"
    seed: int = 0
    training: bool = True
    float32_weights: bool = False
    """Mixed precision as with autocast: the object stays in float32, the arguments do not."""
    was: int | None = None
    """The size that has become another one in all arguments."""
    digits: int | None = None
    """How many significant digits the arguments have, where that makes them easier to read."""
    steps: int = 0
    """How many optimiser steps follow: what a module keeps from one call to the next."""
    autocast: bool = False
    """Whether the call runs under ``torch.autocast`` to bfloat16."""
    nudged: int = 0
    """In which of some ways the arguments are moved a little, in float64; 0: in none."""
    dtypes: tuple[torch.dtype, ...] = ()
    """The only ones to run it in; empty: all that tell something."""
    earlier: Assignment | None = None
    """The arguments of a call that comes first, on the same object and with the same data."""
    earlier_dtype: torch.dtype | None = None
    """What the floats of that call are in, if not in the dtype of this one."""
    shared: tuple[str, str] = ("", "")
    """Two arguments, the second of which is the first itself."""
    left: bool = False
    """Whether weights have the gradients of a step before."""
    without_gradients: bool = False
    """Whether the call runs as under ``torch.no_grad()``."""
    spread: bool = False
    """Whether one row of an operand is for all rows of another, which nothing speaks of."""

    def __str__(self) -> str:
        flavour = "" if self.flavour == "ordinary" else f", {self.flavour}"
        recipe, mode = self.assignment.recipe, "" if self.training else ", eval mode"
        made = f" on an object made with {recipe}" if recipe is not None and str(recipe) else ""
        weights = ", float32 weights" * self.float32_weights + ", under autocast" * self.autocast
        weights += ", under no_grad" * self.without_gradients
        steps = f", {self.steps} optimiser steps" if self.steps else ""
        flavour += f", drawn anew ({self.seed})" if self.seed else ""
        flavour += ", gradients of an earlier step left" if self.left else ""
        flavour += f", {self.shared[0]} for {self.shared[1]} too" if any(self.shared) else ""
        return f"{self.assignment}{flavour}{mode}{weights}{steps}{made}{self._before}"

    @property
    def _before(self) -> str:
        if self.earlier is None:
            return ""
        if self.earlier_dtype is not None:
            return f", after the same in {str(self.earlier_dtype).removeprefix('torch.')}"
        return ", called again" if self.earlier == self.assignment else f", after {self.earlier}"

    @property
    def size(self) -> int:
        """The number of elements of all tensors: what makes a counterexample small.

        1 where there are none: what gets batches or a model does something, of no elements nobody.
        """
        tensors = [t for spec in self.assignment.specs.values() for t in list_tensors(spec)]
        return sum(math.prod(tensor.shape) for tensor in tensors) if tensors else 1


@dataclass(slots=True)
class Target:
    """A function or method of a loaded module."""

    loaded: Loaded
    qualname: str
    owner: type | None = None
    name: str = ""
    is_property: bool = False
    applied: type[torch.autograd.Function] | None = None
    """The class, if the function is a part of an operator with a gradient of its own."""
    on_npu: bool = False
    """Whether calls run on the virtual device of this process."""
    world: Callable[[], AbstractContextManager[None]] = nullcontext
    """What the code runs in: with its own version of the other files of a change."""
    around: Surroundings | None = None
    """The data of the module; every call that is prepared finds it as it was at first."""
    told: Told = TOLD_NOTHING  # by the original
    _function: Callable[..., Any] = print
    _parameters: list[Parameter] | None = None
    """Read once: a search asks with every call."""
    _failed: object = None
    """An object that a search has made, and no call of it has returned yet."""
    _instances: dict[tuple[Recipe, torch.dtype], object] = field(default_factory=dict)
    _wide: dict[Recipe, tuple[str, ...]] = field(default_factory=dict)
    """What a class makes in another dtype than float32: a call has all in one."""

    def __post_init__(self) -> None:
        """Find the function, and whether it wants an object."""
        *path, self.name = self.qualname.partition(".<locals>")[0].split(".")
        scope: Any = None
        for part in path:
            scope = self.loaded.namespace.get(part) if scope is None else getattr(scope, part, None)
        if not path:
            static = self.loaded.namespace.get(self.name)
            self._function = static  # type: ignore[assignment] # checked below
        else:
            if not isinstance(scope, type):
                raise LoadError(f"{'.'.join(path)} is no class")
            static = inspect.getattr_static(scope, self.name, None)
            bound = isinstance(static, staticmethod | classmethod)
            self.owner = None if bound else scope
            self.is_property = isinstance(static, property)
            found = static.fget if isinstance(static, property) else getattr(scope, self.name, None)
            self._function = found  # type: ignore[assignment] # checked below
            if bound and issubclass(scope, torch.autograd.Function):
                # Its methods are called by ``apply``, and by the gradients of what it returns.
                self._function, self.applied = scope.apply, scope
        if not callable(self._function):
            raise LoadError(f"{self.qualname} is no function")
        if self.around is None:
            self.around = Surroundings(self.loaded.namespace)

    def parameters(self) -> list[Parameter]:
        """Return what a call has to supply.

        Raises:
            LoadError: nobody knows.

        """
        if self._parameters is None:
            self._parameters = [*self._read_signature(), *self.told.options]
        return self._parameters

    def _read_signature(self) -> list[Parameter]:
        try:
            takes: Callable[..., Any] = see_through(self._function)
            if self.applied is not None:
                takes = self.applied.forward
            found = list_parameters(inspect.signature(takes), spread=True)
        except (TypeError, ValueError) as error:
            raise LoadError(f"{self.qualname} has no signature: {error}") from None
        bound = self.owner is not None
        if self.applied is not None:  # takes a context?
            bound = self.applied.setup_context is torch.autograd.Function.setup_context
        return found[1:] if bound else found

    @property
    def has_modes(self) -> bool:
        """Whether what it is called on trains and evaluates."""
        return self.owner is not None and issubclass(self.owner, torch.nn.Module)

    @property
    def takes_steps(self) -> bool:
        """Whether it is the step of an optimiser: one call is several of them."""
        if self.owner is None or self.name != "step":
            return False
        code = getattr(inspect.unwrap(self._function), "__code__", None)
        of_its_own = not issubclass(self.owner, torch.nn.Module) and "grad" in getattr(
            code, "co_names", ()
        )
        return issubclass(self.owner, torch.optim.Optimizer) or of_its_own

    def prepare(
        self,
        case: CallCase,
        dtype: torch.dtype,
        *,
        double: bool = False,
        again: bool = False,
        device: str = "",
    ) -> PreparedCall:
        """Make the call of ``case``, every floating tensor in ``dtype``.

        With ``double``, in float64 and on the host; with a ``device``, on that one. ``again`` takes
        the object of the last call, if that has failed.
        """
        assert self.around is not None  # noqa: S101 - made with the target
        self.around.restore()
        specs, recipe = case.assignment.specs, case.assignment.recipe
        place, moved = (device,) if device else (), self.on_npu and not double and not device

        def make(
            given: Mapping[str, Spec],
            seed: int | None = None,
            flavour: Flavour = case.flavour,
            own: torch.dtype = dtype,
        ) -> dict[str, object]:
            number = case.seed if seed is None else seed  # that of a call that comes before
            tied, how = tie_ends(given), (flavour, number, own, case.digits)
            made = fill_optimizers(materialise(tied, *how, find=self.loaded.find))
            _fit_objects(given, made, own, training=case.training or seed is not None)
            if double:
                made = _double_all(given, made)
                made = nudge(made, given, case.nudged, dtype) if case.nudged else made
            if moved or device:
                made = {name: to_device(value, *place) for name, value in made.items()}
            bind_optimizers(made, number, left=case.left)
            return made

        arguments = make(specs)
        arguments |= {case.shared[1]: arguments[case.shared[0]]} if any(case.shared) else {}
        early = case.earlier
        earlier = None if early is None else make(early.specs, own=case.earlier_dtype or dtype)
        first: tuple[object, ...] = ()
        state: Callable[[], dict[str, object]] = dict
        registered: Callable[[], tuple[str, ...]] = tuple
        if self.owner is not None and recipe is not None:
            instance = self._make_ready(case, recipe, dtype, double=double, again=again)
            if moved or (device and isinstance(instance, torch.nn.Module)):  # others have no .to
                instance = instance_to_device(instance, *place)
            if recipe.history:
                with self.world():
                    live_through(instance, recipe.history, make)
            first = (remember(arguments, instance),)
            state = lambda: read_state(instance, "self")  # noqa: E731 - one expression over a local
            wide = self._wide.get(recipe.fresh, ())
            registered = lambda: (*list_registered(instance), *wide)  # noqa: E731 - same
        built = {n: s for n, s in specs.items() if isinstance(s, MadeArgument)}
        returned: list[object] = [None]
        there = "npu" if moved else "cpu"

        def call(passed: Mapping[str, object]) -> object:
            low = torch.autocast(there, torch.bfloat16) if case.autocast else nullcontext()
            with mean_device(device or there), low:
                returned[0] = self.invoke(first, link(_walk(passed, built), self.told.linked))
            return returned[0]

        def every_state() -> dict[str, object]:
            return state() | read_states(arguments, built) | list_handed_out(first, *returned)

        kept = registered, find_constants(specs), moved, self.around, earlier
        return PreparedCall(call, arguments, every_state, *kept)

    def _make_ready(
        self, case: CallCase, recipe: Recipe, dtype: torch.dtype, *, double: bool, again: bool
    ) -> object:
        """Return an object in the mode of a call: that of a failed one, if nothing came before."""
        own = torch.float32 if case.float32_weights else dtype
        failed = self._failed if again and not recipe.history else None
        instance = self.instance(recipe, own) if failed is None else failed
        self._failed = instance if again and not recipe.history else None
        if double:
            cast_floats(instance, torch.float64)
            nudge_state(instance, case.nudged, dtype)
        if isinstance(instance, torch.nn.Module):
            instance.train(case.training)
        elif not case.training:  # somebody has evaluated before
            for held in list_modules(getattr(instance, "__dict__", {})).values():
                held.eval()
        leave_gradients({"self": instance} if case.left else {})
        return instance

    def make_object(self, recipe: Recipe | None) -> object:
        """Return an object to look at; None for a function."""
        if recipe is None or self.owner is None:
            return None
        return self.instance(recipe, torch.float32)

    @property
    def constructor(self) -> Mapping[str, inspect.Parameter]:
        """What an object is made with; nothing for a function."""
        made = try_call(lambda: inspect.signature(self.owner or object), CALL_S).value
        return made.parameters if isinstance(made, inspect.Signature) else {}

    @property
    def sizes(self) -> dict[str, int]:
        """Whole numbers that the object is made with where nothing is said."""
        return {n: p.default for n, p in self.constructor.items() if type(p.default) is int}

    def constants(self) -> dict[str, object]:
        """Return what the module holds, and the class that the function is in, by bare names."""
        holder = self.loaded.namespace.get(self.qualname.partition(".")[0])
        bases = reversed(holder.__mro__) if isinstance(holder, type) else ()
        return {**self.loaded.namespace, **{n: v for b in bases for n, v in vars(b).items()}}

    def settings_of(self, recipe: Recipe) -> dict[str, object]:
        """Return the plain values that an object is made with, defaults included."""
        made = {name: parameter.default for name, parameter in self.constructor.items()}
        return made | {n: s.value for n, s in recipe.arguments if isinstance(s, Value)}

    def choose(
        self, recipes: Iterable[Recipe | None], values: Mapping[str, object]
    ) -> Iterator[Recipe | None]:
        """Yield how to make the object with these values of its attributes or its arguments'.

        What its class is made with goes through that: it may refuse what cannot be.
        """
        own = {n.removeprefix("self."): Value(v) for n, v in values.items()}
        own = {n: v for n, v in own.items() if f"self.{n}" in values and n in self.constructor}
        for recipe in recipes:
            if recipe is None or not own or recipe.attributes is not None:
                yield recipe and _chosen(recipe, values)
                continue
            made = recipe.made_with(**own)
            tried = try_call(lambda made=made: self.make_object(made), CALL_S)  # type: ignore[misc] # a default binds it
            kept = all(getattr(tried.value, n, None) == v.value for n, v in own.items())
            if kept and not tried.error:
                yield _chosen(made, {n: v for n, v in values.items() if n[5:] not in own})
            elif tried.kind not in {"ValueError", "AssertionError"}:
                yield _chosen(recipe, values)

    def discard_object(self) -> None:
        """Make another object for the next call of a search: this one is used."""
        self._failed = None

    def on_host(self) -> Target:
        """Return the same function, with calls on the host."""
        return replace(self, on_npu=False)

    def invoke(self, first: tuple[object, ...], passed: Mapping[str, Any]) -> object:
        """Call the function, on an object if ``first`` holds one."""
        by_name = self.keywords(passed)
        spread = {p.name for p in self.parameters() if p.spread}
        groups = [v if k in spread else (v,) for k, v in passed.items() if k not in by_name]
        positional = [one for group in groups for one in group]
        keywords = {k: v for k, v in passed.items() if k in by_name}
        with self.world():
            # What an optimiser keeps of one step, the next one takes.
            if self.takes_steps:
                return take_steps(self._function, *first, *positional, **keywords)
            return go_through(self._function(*first, *positional, **keywords))

    def keywords(self, passed: Iterable[str]) -> set[str]:
        """Return the arguments that are passed by name: those after one that is left out."""
        names = [p.name for p in self.parameters() if not p.keyword_only]
        given = set(passed)
        first = next((i for i, name in enumerate(names) if name not in given), len(names))
        return given - set(names[:first])

    def instance(self, recipe: Recipe, dtype: torch.dtype) -> object:
        """Return a fresh object, in ``dtype``."""
        assert self.owner is not None  # noqa: S101 - only methods have recipes
        recipe = recipe.fresh
        key = (recipe, dtype)
        if key not in self._instances:
            with self.world():
                made = recipe.build(self.owner, self.loaded.find)
            held = read_state(made, "self") if isinstance(made, torch.nn.Module) else {}
            self._wide[recipe] = tuple(
                f"{name} made in {value.dtype}"
                for name, value in held.items()
                if isinstance(value, torch.Tensor)
                and value.is_floating_point()
                and value.dtype != torch.float32
            )
            cast_made(made, recipe.arguments, dtype)
            self._instances[key] = made
        if issubclass(self.owner, torch.optim.Optimizer) or is_hooked(self._instances[key]):
            return self._instances.pop(key)  # copies of weights have no gradients, and no hooks
        try:
            return copy_object(self._instances[key])
        except Exception:  # noqa: BLE001 - __deepcopy__ of the user's class; then build it again
            return self._instances.pop(key)


def _fit_objects(
    given: Mapping[str, Spec], made: dict[str, object], own: torch.dtype, *, training: bool
) -> None:
    """Bring objects among arguments to the dtype and into the mode of a call."""
    for name, spec in given.items():
        if isinstance(spec, MadeArgument) and spec.given is not None and name in made:
            cast_object(made[name], spec.given, own)
        elif isinstance(spec, MadeArgument) and name in made:
            made[name] = _cast(made[name], own)
    for module in () if training else list_modules(made).values():
        module.eval()


def _walk(passed: Mapping[str, object], built: Mapping[str, MadeArgument]) -> Mapping[str, object]:
    """Return arguments with an iterator over each of those that end once."""
    walked = {n for n, s in built.items() if s.walked}
    return {n: iter(v) if n in walked else v for n, v in passed.items()}  # type: ignore[call-overload] # a list


def _double_all(given: Mapping[str, Spec], made: Mapping[str, object]) -> dict[str, object]:
    found = {name: _double(value) for name, value in made.items()}
    _fit_objects(given, found, torch.float64, training=True)
    return found


def _double(value: object) -> object:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.double()
    if isinstance(value, torch.Tensor) and value.is_complex():
        return value.to(torch.complex128)
    if isinstance(value, torch.nn.Module) or list_weights(value):
        cast_floats(value, torch.float64)
        return value
    return map_items(value, _double)


def _cast(value: object, dtype: torch.dtype) -> object:
    """Return an object, or what a loop goes through, in a dtype."""
    if isinstance(value, torch.nn.Module) or list_weights(value):
        cast_floats(value, dtype)
        return value
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    return map_items(value, lambda item: _cast(item, dtype))
