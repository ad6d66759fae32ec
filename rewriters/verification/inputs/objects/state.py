"""What objects hold: the tensors and plain attributes that a call may change, and in what dtype."""

from __future__ import annotations

import enum
import inspect
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.leaves import find_leaves
from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.calls.values import MadeArgument, Several, Tensor, Value
from npufix.rewriters.verification.inputs.objects.weights import (
    list_modules,
    list_weights,
    read_remembered,
)
from npufix.rewriters.verification.inputs.source.attributes import list_attributes_written
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from npufix.rewriters.verification.calls.values import Spec

_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
)
_PLAIN = (torch.Tensor, bool, int, float, str)


def cast_floats(instance: object, dtype: torch.dtype) -> None:
    """Bring every floating tensor of an object to ``dtype``."""
    parts = [instance]
    if isinstance(instance, torch.nn.Module):
        if any(t.is_complex() for t in (*instance.parameters(), *instance.buffers())):
            # ``to`` would discard what is imaginary
            instance._apply(lambda tensor: _cast(tensor, dtype))  # type: ignore[no-untyped-call] # noqa: SLF001 - what ``to`` calls
        else:
            instance.to(dtype)
        parts = list(instance.modules())
    else:
        for held in list_modules(getattr(instance, "__dict__", {})).values():
            cast_floats(held, dtype)
    for weight in list_weights(instance):
        gradient = weight.grad
        weight.grad = None
        weight.data = weight.data.to(dtype)
        weight.grad = None if gradient is None else gradient.to(dtype)
    for part in parts:
        for name, value in list(getattr(part, "__dict__", {}).items()):
            if isinstance(value, torch.Tensor) and value.is_floating_point():
                part.__dict__[name] = value.to(dtype)


def list_tables(made: object, given: Iterable[tuple[str, Spec]]) -> dict[str, torch.Tensor]:
    """Return the tensors of an object that stay as they are whatever is passed to its methods.

    ``self.betas = torch.linspace(1e-4, 0.02, steps)`` of a class that is no module, is made of
    plain values and does not write it: no caller has that in float16.
    """
    if isinstance(made, torch.nn.Module) or not all(isinstance(s, Value) for _, s in given):
        return {}
    methods = [n for n, m in vars(type(made)).items() if inspect.isfunction(m) and n != "__init__"]
    written = set[str]().union(*(list_attributes_written(type(made), n) for n in methods))
    held: dict[str, object] = getattr(made, "__dict__", {})
    return {n: v for n, v in held.items() if isinstance(v, torch.Tensor) and n not in written}


def cast_made(made: object, given: Iterable[tuple[str, Spec]], dtype: torch.dtype) -> None:
    """Bring an object that was made with ``given`` to a dtype, but for its tables."""
    tables = list_tables(made, given)
    cast_floats(made, dtype)
    getattr(made, "__dict__", {}).update(tables)


def cast_object(made: object, given: Iterable[tuple[str, Spec]], dtype: torch.dtype) -> None:
    """Bring an object of the user's class that is an argument to a dtype, with those in it."""
    cast_made(made, given, dtype)
    if isinstance(made, torch.nn.Module):
        return
    inner = {n: s.given for n, s in given if isinstance(s, MadeArgument) and s.given is not None}
    for name, held in inner.items():
        if hasattr(getattr(made, name, None), "__dict__"):
            cast_object(getattr(made, name), held, dtype)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in a dtype, complex ones in that of its precision, at least single."""
    if tensor.is_complex():
        return tensor.to(torch.complex128 if dtype == torch.float64 else torch.complex64)
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def find_constants(specs: Mapping[str, Spec]) -> frozenset[str]:
    """Return the tensors that take no gradient, by the names that an observation gives them."""
    found = set()
    for name, spec in specs.items():
        keys: Sequence[object] = range(len(spec.items)) if isinstance(spec, Several) else ()
        keys = spec.keys if isinstance(spec, Several) and spec.keys else keys
        parts = {f"{name}[{k!r}]": i for k, i in zip(keys, getattr(spec, "items", ()), strict=True)}
        for full, item in (parts or {name: spec}).items():
            if isinstance(item, Tensor) and item.is_constant:
                found.add(full)
    return frozenset(found)


def list_handed_out(objects: Iterable[object], result: object) -> dict[str, object]:
    """Return which list or dictionary of an object is the result itself, and no copy of it.

    Whoever keeps ``self.features`` sees what the next call makes of it.
    """
    if not isinstance(result, (list, dict, set)):
        return {}
    held = (item for one in objects for item in getattr(one, "__dict__", {}).items())
    return {f"handing out self.{name} itself": True for name, value in held if value is result}


def is_hooked(instance: object) -> bool:
    """Say whether functions belong to an object that a copy of it would share with it.

    Hooks of its modules and weights, and what closes over ``self``: they write into the first one.
    """
    modules = [instance] if isinstance(instance, torch.nn.Module) else []
    modules += list_modules(getattr(instance, "__dict__", {})).values()
    parts = [part for module in modules for part in module.modules()]
    if any(getattr(part, hooks, None) for part in parts for hooks in _HOOKS):
        return True
    if any(w._backward_hooks for m in modules for w in m.parameters(recurse=True)):  # noqa: SLF001 - no other name
        return True
    values = [v for part in (instance, *parts) for v in getattr(part, "__dict__", {}).values()]
    if any(w.grad is not None for v in values for w in list_weights(v)):
        return True
    closures = (getattr(v, "__closure__", None) or () for v in values if callable(v))
    held = {id(instance), *map(id, parts)}
    return any(id(cell.cell_contents) in held for cells in closures for cell in cells)


def read_state(instance: object, called: str) -> dict[str, object]:
    """Return the tensors and plain attributes of an object, by the names that code gives them."""
    parts = {f"{called}.": instance}
    found: dict[str, object] = {}
    if isinstance(instance, torch.nn.Module):
        parts = _list_parts(instance, called)
        hooks = (getattr(part, kind, ()) for part in parts.values() for kind in _HOOKS)
        found[f"hooks of {called}"] = sum(map(len, hooks))
    elif not isinstance(instance, torch.optim.Optimizer):
        # ``self.ema`` of what averages a model, ``self.models[0]``
        for name, module in list_modules(getattr(instance, "__dict__", {})).items():
            parts |= _list_parts(module, f"{called}.{name}")
    weights = list_weights(instance)
    found |= {f"{called}.params[{n}]": weight for n, weight in enumerate(weights)}
    found |= _read_held_settings(instance, called)
    for prefix, part in parts.items():
        held = getattr(part, "__dict__", {})
        if isinstance(part, torch.nn.Module):
            registered = (*part.named_parameters(recurse=False), *part.named_buffers(recurse=False))
            found |= {f"{prefix}{name}": value for name, value in registered}
            held = {name: value for name, value in held.items() if not name.startswith("_")}
        for name, value in held.items():
            if isinstance(value, _PLAIN):  # each version has members of an enumeration of its own
                found[f"{prefix}{name}"] = repr(value) if isinstance(value, enum.Enum) else value
            elif isinstance(value, (dict, list)) and not (name.startswith("_") or weights):
                # ``self.count['loss']``; of sizes and names in lists, the results tell
                kept = (torch.Tensor, int) if isinstance(value, dict) else torch.Tensor
                leaves = find_leaves(value, f"{prefix}{name}")
                orders = f"order of {prefix}"
                found |= {
                    key: leaf
                    for key, leaf in leaves
                    if isinstance(leaf, kept) or key.startswith(orders)
                }
    return found


def read_states(
    arguments: Mapping[str, object], built: Mapping[str, MadeArgument]
) -> dict[str, object]:
    """Return what the modules, optimisers and objects of own classes among arguments hold."""
    found = read_remembered(arguments)
    for name, module in list_modules(arguments).items():
        found |= read_state(module, name)
    for name, value in arguments.items():
        of_own_class = name in built and built[name].given is not None
        if of_own_class and not isinstance(value, torch.nn.Module):
            found |= read_state(value, name)
        found |= read_settings(value, name)
    return found


def _read_held_settings(instance: object, called: str) -> dict[str, object]:
    held = getattr(instance, "__dict__", {}).items()
    each = (read_settings(value, f"{called}.{name}").items() for name, value in held)
    found = {name: value for settings in each for name, value in settings}
    if not list_modules(dict(held)) and not isinstance(instance, torch.nn.Module):
        for name, value in held:  # what nobody else shows: weights that only an optimiser knows
            weights = enumerate(list_weights(value))
            found |= {f"{called}.{name}.params[{n}]": weight for n, weight in weights}
    return found


def read_settings(optimizer: object, called: str) -> dict[str, object]:
    """Return the numbers by which an optimiser trains: what a schedule changes, ``lr``."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return {}
    return {
        f"{called}.param_groups[{number}][{key!r}]": value
        for number, group in enumerate(optimizer.param_groups)
        for key, value in group.items()
        if type(value) in {int, float}
    }


def _list_parts(module: torch.nn.Module, called: str) -> dict[str, object]:
    named = module.named_modules()
    return {f"{called}.{name}." if name else f"{called}.": part for name, part in named}


def list_registered(instance: object) -> tuple[str, ...]:
    """Return what a module saves and trains, by the names of ``read_state``."""
    if not isinstance(instance, torch.nn.Module):
        return ()
    trained = sorted(f"self.{n}" for n, _ in instance.named_parameters(remove_duplicate=False))
    found = try_call(lambda: sorted(instance.state_dict()), CALL_S).value
    saved = found if isinstance(found, list) else []
    return (*trained, *(f"self.{name} (saved)" for name in saved))
