"""The tensors and plain values inside of anything, each with the name that code would give it."""

from __future__ import annotations

import collections
import contextlib
import enum
import itertools
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping

import torch

_DEPTH = 6
_OF_PYTHON = frozenset({"builtins", "itertools"})
_MOST_GIVEN = 256
_Tensor = torch.Tensor
_PLAIN_TENSORS = frozenset({torch.Tensor, torch.nn.Parameter})
"""A class of its own may compute something else with what it holds."""
_NARROW = frozenset({torch.float8_e4m3fn, torch.float8_e5m2})
_PLAIN = frozenset({bool, bytes, int, str, type(None)})
"""What most of what is found is: asked for first."""
_NESTED = frozenset({dict, list, tuple, type})
"""What most of the rest is: a table of activations has a hundred, and each call reads it."""
_WRITTEN = frozenset({dict, list, set, collections.deque, collections.defaultdict})
_SHARING = "the other name of "
_FEEDING = frozenset({"num_workers", "persistent_workers", "pin_memory", "prefetch_factor"})
"""How a loader makes its batches, not what they hold."""


class iterator(list[object]):  # noqa: N801 - differences name the type of a result
    """What somebody has got who goes through the result of a call."""


def go_through(value: object) -> object:
    """Return what a generator or another iterator of Python gives; anything else as it is.

    Calling a generator does not run it. Of one without an end, it is the beginning.
    """
    if isinstance(value, Iterator) and type(value).__module__ in _OF_PYTHON:
        return iterator(itertools.islice(value, _MOST_GIVEN))
    if isinstance(value, contextlib._GeneratorContextManager):  # noqa: SLF001 - it has no other name
        return _enter(value)
    if isinstance(value, torch.nn.Module):
        return _take_apart(value)
    if type(value) in {list, tuple} and any(isinstance(v, torch.nn.Module) for v in value):  # type: ignore[attr-defined] # it is one of these
        return [go_through(item) for item in value]  # type: ignore[attr-defined] # same
    return value


def _take_apart(module: torch.nn.Module) -> dict[str, object]:
    """Return what tells a module that is a result from another: its parts, weights and modes.

    And the settings of layers of torch: the dilation that a folded convolution has lost.
    """
    found: dict[str, object] = {}
    for name, part in module.named_modules():
        found[f"{name}.class".lstrip(".")] = type(part).__name__
        own = vars(part) if type(part).__module__.startswith("torch.nn.modules") else {}
        for key, held in {**own, "training": part.training}.items():
            if isinstance(held, int | float | str | tuple) and not key.startswith("_"):
                found[f"{name}.{key}".lstrip(".")] = held
    weights = (*module.named_parameters(), *module.named_buffers())
    return found | dict(weights)


def _enter(manager: contextlib._GeneratorContextManager[object]) -> dict[str, object]:
    """Return what a context manager gives, what holds inside it, and after what raises there."""
    function, arguments, named = manager.func, manager.args, manager.kwds
    given = (*arguments, *named.values())
    with manager as entered:
        own = next((n for n, value in enumerate(given) if value is entered), None)
        found = {"given": entered if own is None else own, "inside": _look_around(given)}
        if isinstance(entered, torch.nn.Module):
            found["given"] = _look_around((entered,))
    other = type(manager)(function, arguments, named)
    try:
        with other:
            raise _FromInsideError  # noqa: TRY301 - it is what a caller may do
    except _FromInsideError:
        found["raises"] = True
    return found | {"after": _look_around(given)}


class _FromInsideError(Exception):
    """What somebody raises inside of a context manager."""


def _look_around(given: Iterable[object]) -> dict[str, object]:
    """Return how torch computes at the moment, and the modes and weights of modules."""
    state = torch.get_rng_state().numpy().tobytes()
    found: dict[str, object] = {
        "with gradients": torch.is_grad_enabled(),
        "in inference mode": torch.is_inference_mode_enabled(),
        "under autocast": torch.is_autocast_enabled("cpu"),
        "default dtype": torch.get_default_dtype(),
        "random state": zlib.crc32(state),
    }
    for value in given:
        held = [value, *getattr(value, "__dict__", {}).values()]
        for module in (m for m in held if isinstance(m, torch.nn.Module)):
            for name, part in module.named_modules():
                found[f"{name}.training".lstrip(".")] = part.training
            weights = module.state_dict(keep_vars=True).items()
            found |= {name: weight.detach().clone() for name, weight in weights}
            found |= {f"{name}.requires_grad": weight.requires_grad for name, weight in weights}
    return found


def find_leaves(value: object, name: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield tensors and plain values of a nested result, each with a readable name."""
    kind = type(value)
    if kind in _PLAIN:
        yield name, value
        return
    found = None if kind in _NESTED else _find_leaf(value, name)
    if found is not None:
        yield from found
        return
    yield f"type of {name}", kind.__name__
    if isinstance(value, dict) and len(value) > 1 and all(map(_is_plain_key, value)):
        yield f"order of {name}", tuple(value)  # what is dropped first is the first
    for inner, item in _items(value, name) if depth < _DEPTH and kind is not type else ():
        yield from find_leaves(item, inner, depth + 1)


def _is_plain_key(key: object) -> bool:
    return all(map(_is_plain_key, key)) if isinstance(key, tuple) else type(key) in _PLAIN


def _find_leaf(value: object, name: str) -> list[tuple[str, object]] | None:
    """Return what stands for a value that is looked at as a whole; None for any other."""
    kind = type(value)
    typed = (f"type of {name}", kind.__name__)
    found: list[tuple[str, object]] | None = None
    if isinstance(value, enum.Enum):  # each version of a module has members of its own
        found = [(name, f"{kind.__name__}.{value.name or value.value}")]
    elif isinstance(value, (int, str, bytes)):
        found = [(name, value)]
    elif isinstance(value, _Tensor):
        parts = _open_up(value, name)
        found = parts if kind in _PLAIN_TENSORS else [typed, *parts]
    elif isinstance(value, float):
        number = torch.tensor(value, dtype=torch.float32)
        number.of_python = True  # type: ignore[attr-defined] # it has no dtype of its own
        found = [(name, number)]
    elif isinstance(value, (torch.dtype, torch.device)):
        found = [(name, str(value))]
    elif kind.__module__ == "numpy" and hasattr(value, "dtype"):
        found = [typed, (name, torch.as_tensor(value))]
    elif isinstance(value, (torch.Generator, random.Random)):
        state = value.get_state().numpy().tobytes() if isinstance(value, torch.Generator) else None
        found = [(f"state of {name}", zlib.crc32(state or repr(value.getstate()).encode()))]  # type: ignore[union-attr] # then it has one
    elif isinstance(value, (set, frozenset)):
        found = [typed, (name, tuple(sorted(map(repr, value))))]
    return found


def _open_up(value: torch.Tensor, name: str) -> list[tuple[str, object]]:
    """Return a tensor, as dense ones if it is none: what compares numbers takes no other."""
    if value.is_nested:
        return [(f"{name}[{n}]", part) for n, part in enumerate(value.unbind())]
    if value.dtype in _NARROW:  # hardly any operator takes it
        return [(f"dtype of {name}", str(value.dtype)), (name, value.to(torch.bfloat16))]
    if value.layout == torch.strided or value.is_mkldnn:
        return [(name, value)]
    by_place = value.layout == torch.sparse_coo
    count = value._nnz() if not by_place or value.is_coalesced() else None  # noqa: SLF001 - no other name
    said = [(f"layout of {name}", str(value.layout)), (f"elements of {name}", count)]
    if by_place:  # torch makes one with places outside of it, and writes there to make it dense
        places, sizes = value._indices(), torch.tensor(value.shape[: value.sparse_dim()])  # noqa: SLF001 - of any
        if ((places < 0) | (places >= sizes[:, None].to(places.device))).any():
            return [*said, (f"places of {name}", tuple(places.flatten().tolist()))]
    return [*said, (name, value.to_dense())]


def _items(value: object, name: str) -> list[tuple[str, object]]:
    if isinstance(value, (dict, Mapping)):
        return [(f"{name}[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, (list, tuple, collections.deque)):
        return [(f"{name}[{index}]", item) for index, item in enumerate(value)]
    if isinstance(value, (type, torch.nn.Module)) or callable(value):
        return []
    if isinstance(value, torch.optim.Optimizer):
        return [(f"{name}.param_groups", value.param_groups)]
    left_out = _FEEDING if isinstance(value, torch.utils.data.DataLoader) else frozenset[str]()
    attributes: dict[str, object] = getattr(value, "__dict__", {})
    return [(f"{name}.{key}", item) for key, item in attributes.items() if key not in left_out]


def list_shared(result: object, given: Mapping[str, object]) -> dict[str, object]:
    """Return which lists and dictionaries of a result are one, or are one of the arguments.

    Who writes into one of ``[[0] * n] * 2`` writes into both.
    """
    first = {id(held): name for key, value in given.items() for name, held in _walk(value, key)}
    found: dict[str, object] = {}
    for name, held in _walk(result, "result"):
        same = first.setdefault(id(held), name)
        if same != name:
            found[f"{_SHARING}{name}"] = same
    return found


def _walk(value: object, name: str, depth: int = 0) -> Iterator[tuple[str, object]]:
    """Yield the lists, dictionaries and sets inside of a value, that is those of Python."""
    if type(value) in _WRITTEN:
        yield name, value
    if isinstance(value, (list, dict, tuple)) and depth < _DEPTH:
        for inner, item in _items(value, name):
            if type(item) not in _PLAIN:
                yield from _walk(item, inner, depth + 1)


def spell_apart(before: object, after: object) -> tuple[str, str]:
    """Spell two values; of two lists of names, what only one of them holds."""
    if isinstance(before, tuple) and isinstance(after, tuple) and set(before) != set(after):
        kept = set(before) & set(after)
        sides = ([name for name in side if name not in kept] for side in (before, after))
        left, right = (f"..., {', '.join(side)}" if side else "without them" for side in sides)
        return left, right
    return repr(before), repr(after)


def tells_apart(name: str, before: object, after: object) -> bool:
    """Say whether what differs is one that somebody sees.

    An order, of the same keys: of others, each says that itself.
    """
    if name.startswith(_SHARING):  # what is no longer shared is seen by nobody who only reads
        return before is None
    if not name.startswith("order of "):
        return True
    sides = (sorted(map(repr, s if isinstance(s, tuple) else ())) for s in (before, after))
    return len({tuple(side) for side in sides}) == 1


def tell_apart(name: str, left: torch.Tensor | None, right: torch.Tensor | None) -> str:
    """Say what keeps two tensors from being compared; empty if nothing."""
    if left is None and right is None:
        return ""
    if left is None or right is None:
        absent, present = ("original", "patched code")[:: 1 if left is None else -1]
        return f"{name} is None in the {absent} and a tensor in the {present}"
    if left.dtype != right.dtype or left.shape != right.shape:
        return (
            f"{name} is {name_kind(left)} in the original, {name_kind(right)} in the patched code"
        )
    return ""


def name_kind(value: torch.Tensor) -> str:
    """Return ``float32[2, 3]``."""
    return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
