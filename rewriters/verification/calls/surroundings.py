"""What a call may change beside its arguments and its object: its module, its classes, torch.

``LOG["loss"].append(...)``, ``global calls``, ``Tracker.seen += 1``, ``f.count += 1``, a default
``cache={}``, ``torch.set_grad_enabled(False)``: every call finds all of it as it was after loading,
and what it leaves there is seen like what it does to its arguments.
"""

from __future__ import annotations

import collections
import copy
import ctypes
import random
import sys
import types
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.device import seed_device
from npufix.rewriters.verification.calls.leaves import find_leaves
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npufix.rewriters.verification.calls.observe import CallRecord

_MOST_LEAVES = 2000
"""Of one name: a vocabulary is read by a call, and not written."""
_COPY_S = 2.0
_TWISTER_BYTES = 4 * 624 + 4
"""NumPy's usual generator: its words, and how many of them were drawn."""
_PLAIN = (bool, int, float, str, bytes, type(None))
_CONTAINERS = (dict, list, set, collections.deque)


def read_settings() -> dict[str, object]:
    """Return what calls of torch can leave changed for everything after them."""
    return {
        "whether torch computes gradients": torch.is_grad_enabled(),
        "the inference mode of torch": torch.is_inference_mode_enabled(),
        "the default dtype of torch": str(torch.get_default_dtype()),
        "the autocast of torch on the CPU": torch.is_autocast_enabled("cpu"),
        "whether torch demands deterministic algorithms": (
            torch.are_deterministic_algorithms_enabled()
        ),
    }


def restore_settings(settings: Mapping[str, object]) -> None:
    """Put back what ``read_settings`` has returned, as far as a call can have changed it."""
    torch.set_grad_enabled(bool(settings["whether torch computes gradients"]))
    name = str(settings["the default dtype of torch"]).removeprefix("torch.")
    torch.set_default_dtype(getattr(torch, name))
    torch.set_autocast_enabled("cpu", bool(settings["the autocast of torch on the CPU"]))
    demanded = bool(settings["whether torch demands deterministic algorithms"])
    if torch.are_deterministic_algorithms_enabled() != demanded:
        torch.use_deterministic_algorithms(demanded)


def seed_everything(seed: int) -> None:
    """Give original and patched code the same random numbers."""
    # torch.manual_seed also queues a traceback for every absent accelerator, and keeps it.
    torch.default_generator.manual_seed(seed)
    seed_device(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % (1 << 32))


def tell_draws(seed: int) -> int | None:
    """Return what is the same for two calls that have drawn as many numbers after ``seed``.

    None where it was one, which tells nothing: ``bernoulli_`` and ``rand`` both take one for a
    single element, and make another of it.
    """
    fresh = torch.Generator().manual_seed(seed)
    drawn = torch.get_rng_state()
    torch.rand(1, generator=fresh)
    return None if torch.equal(drawn, fresh.get_state()) else hash(drawn.numpy().tobytes())


def read_generators(*, on_npu: bool) -> dict[str, object]:
    """Return the states of all random numbers that a call may draw from."""
    device = torch.npu.get_rng_state() if on_npu else None  # type: ignore[attr-defined] # torch_npu adds it
    own = {"torch": torch.get_rng_state(), "random": random.getstate(), "numpy": _read_numpy()}
    return {**own, "the device": device}


def _read_numpy() -> object:
    """Return the state of NumPy's own generator, which is there where NumPy is imported."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return None
    generator = numpy.random.get_bit_generator()
    if type(generator).__name__ == "MT19937":
        # ``get_state`` takes fifty times as long, and each call is between two of them.
        return ctypes.string_at(generator.ctypes.state_address, _TWISTER_BYTES)
    kind, words, *rest = numpy.random.get_state()
    return kind, words.tobytes(), *rest


class Surroundings:
    """The data in the namespace of a module, as it was when this was made."""

    def __init__(self, namespace: dict[str, object]) -> None:
        """Remember everything in ``namespace`` that code may write to."""
        module = str(namespace.get("__name__", ""))
        self._saved: dict[str, _Place] = {}
        for name, value in list(namespace.items()):
            if name.startswith("__") or isinstance(value, types.ModuleType):
                continue
            for place in _find_places(name, value, namespace, module):
                self._saved[place.name] = place

    def restore(self) -> None:
        """Put everything back, in place where others may hold it."""
        for place in self._saved.values():
            place.restore()

    def read(self) -> dict[str, object]:
        """Return what is there now: ``LOG['loss'][0]``, ``Tracker.seen``."""
        found: dict[str, object] = {}
        for place in self._saved.values():
            found |= place.read()
        return found

    @property
    def roots(self) -> frozenset[str]:
        """The names that are known, whatever they hold."""
        return frozenset(self._saved)


class _Place:
    """One name, how to get at its value, and what it was."""

    def __init__(
        self,
        name: str,
        get: Callable[[], object],
        put: Callable[[object], None],
        saved: object,
    ) -> None:
        self.name, self._get, self._put = name, get, put
        self._object, self._saved = get(), saved
        self._known: list[tuple[str, object]] | None = None
        """What is saved, leaf by leaf."""

    def restore(self) -> None:
        held, saved = self._object, self._saved
        if self._get() is not held:
            self._put(held)
        if isinstance(held, _PLAIN) or try_call(self._is_same, _COPY_S).value:
            return
        fresh = copy.deepcopy(saved)
        if (isinstance(held, dict) and isinstance(fresh, dict)) or (
            isinstance(held, set) and isinstance(fresh, set)
        ):
            held.clear()
            held.update(fresh)
        elif isinstance(held, list | collections.deque):
            held.clear()
            held.extend(fresh)  # type: ignore[arg-type] # of the same type
        elif isinstance(held, torch.Tensor) and isinstance(fresh, torch.Tensor):
            self._put(fresh)
            self._object = fresh
        elif hasattr(held, "__dict__"):
            vars(held).clear()
            vars(held).update(vars(fresh))

    def _is_same(self) -> bool:
        """Say whether nothing was written into what is held; a doubt counts as a change."""
        if self._known is None:
            self._known = _flat(self._saved)
        return _flat(self._object) == self._known

    def read(self) -> dict[str, object]:
        return dict(find_leaves(self._get(), self.name))


def _flat(value: object) -> list[tuple[str, object]]:
    return [
        (name, item.tolist() if isinstance(item, torch.Tensor) else item)
        for name, item in find_leaves(value, "")
    ]


def _find_places(
    name: str, value: object, namespace: dict[str, object], module: str
) -> Iterator[_Place]:
    """Yield what a name of a module holds that a call may write to."""
    if isinstance(value, types.FunctionType | type):
        if value.__module__ != module:
            return
        for key, item in list(vars(value).items()):
            if not key.startswith("__"):
                yield from _place(f"{name}.{key}", _attribute(value, key), item)
            if isinstance(value, type):
                yield from _find_defaults(f"{name}.{key}", getattr(item, "__func__", item))
        yield from _find_defaults(name, value)
    else:
        own = isinstance(value, _PLAIN) or type(value).__module__ in {module, "builtins"}
        if own or isinstance(value, torch.Tensor | collections.deque | Mapping):
            access = (lambda: namespace.get(name)), (lambda v: namespace.__setitem__(name, v))
            yield from _place(name, access, value)


def _find_defaults(name: str, function: object) -> Iterator[_Place]:
    """Yield what a function holds for arguments that are left out: ``outputs=[]``."""
    plain = enumerate(getattr(function, "__defaults__", None) or ())
    by_name = (getattr(function, "__kwdefaults__", None) or {}).items()
    for key, item in (*plain, *by_name) if isinstance(function, types.FunctionType) else ():
        if isinstance(item, _CONTAINERS):
            yield from _place(f"default {key} of {name}", _keep(item), item)


def _attribute(holder: object, key: str) -> tuple[Callable[[], object], Callable[[object], None]]:
    return (lambda: getattr(holder, key, None)), (lambda value: setattr(holder, key, value))


def _keep(item: object) -> tuple[Callable[[], object], Callable[[object], None]]:
    """Leave a default where it is: a call only writes into it."""
    return (lambda: item), (lambda _: None)


def _place(
    name: str,
    access: tuple[Callable[[], object], Callable[[object], None]],
    value: object,
) -> Iterator[_Place]:
    data = isinstance(value, (*_PLAIN, *_CONTAINERS, torch.Tensor))
    kept = type(value).__module__ not in {"builtins", "torch", "typing"} and not callable(value)
    if not data and not (kept and hasattr(value, "__dict__")):
        return
    if isinstance(value, torch.nn.Module):
        return
    count = sum(1 for _, _ in zip(find_leaves(value, name), range(_MOST_LEAVES), strict=False))
    if count >= _MOST_LEAVES:
        return
    copied = try_call(lambda: copy.deepcopy(value), _COPY_S)
    if not copied.error:
        yield _Place(name, *access, copied.value)


def find_changed_around(original: CallRecord, patched: CallRecord) -> set[str]:
    """Return what the calls have changed in their modules, as far as both modules know the name."""
    roots = original.known & patched.known

    def is_known(name: str) -> bool:
        plain = name.rpartition(" of ")[2]  # its type, state or order
        return any(plain == r or plain.startswith((f"{r}[", f"{r}.")) for r in roots)

    wrote = original.changed | patched.changed
    return {n for n in wrote if (n in original.around or n in patched.around) and is_known(n)}


def with_changed_around(seen: CallRecord, chosen: set[str]) -> CallRecord:
    """Return a call with what it has changed in its module, of these names."""
    if not chosen:
        return seen
    here = {f"{n} after the call": seen.around[n] for n in chosen if n in seen.around}
    tensors = {n: v for n, v in here.items() if isinstance(v, torch.Tensor)}
    plain = {n: v for n, v in here.items() if n not in tensors}
    return replace(seen, tensors={**seen.tensors, **tensors}, plain={**seen.plain, **plain})
