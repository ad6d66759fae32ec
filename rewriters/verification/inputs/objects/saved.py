"""What a module is loaded from: its own state, and that of earlier versions of its class.

``if prefix + "gamma" in state: state[prefix + "weight"] = state.pop(prefix + "gamma")`` wants a
state with ``gamma`` in it and no ``weight``, which nothing but the text tells.
"""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.calls.values import Several, Spec, Tensor, Value
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.verification.inputs.source.parameters import Parameter
    from npufix.rewriters.verification.inputs.source.usage import Function

_HOOK = "_load_from_state_dict"
_HOOK_ARGUMENTS = 7
"""State, prefix, metadata, strict, and three lists that it appends to."""
_PREFIX = "layer."
_KEY = re.compile(r"[a-z]\w*(\.\w+)*")
_MOST_KEYS = 3
_MOST_STATES = 16


def offer_loads(
    made: object, parameters: Sequence[Parameter], function: Function | None, name: str
) -> Iterator[dict[str, Spec]]:
    """Yield arguments for ``load_state_dict`` of a class, and for what torch calls for each part.

    ``made`` is an object of it, ``parameters`` are those of the function.
    """
    names = [p.name for p in parameters]
    if name == "load_state_dict" and names:
        states = _list_states(_read_state(made), "", function)
        defaults: dict[str, Spec] = {
            p.name: Value(p.default, given=False) for p in parameters if p.has_default
        }
        if len(names) == 1 + len(defaults):
            yield from ({**defaults, names[0]: state} for state in states)
    elif name == _HOOK and len(names) == _HOOK_ARGUMENTS and isinstance(made, torch.nn.Module):
        held = (*made.named_parameters(recurse=False), *made.named_buffers(recurse=False))
        for state in _list_states(dict(held), _PREFIX, function):
            nothing = Several((), "list")
            others = Value(_PREFIX), Several((), "dict"), Value(True), nothing, nothing, nothing  # noqa: FBT003 - strict
            yield dict(zip(names, (state, *others), strict=True))


def _read_state(made: object) -> Mapping[str, object]:
    found = try_call(getattr(made, "state_dict", dict), CALL_S).value
    return found if isinstance(found, dict) else {}


def _list_states(
    own: Mapping[str, object], prefix: str, function: Function | None
) -> Iterator[Several]:
    """Yield the whole state; one without each key; and with keys that the code names beside."""
    whole = {f"{prefix}{name}": _describe(value) for name, value in own.items()}
    if not whole:
        return
    named = [n.value for n in walk(function) if isinstance(n, ast.Constant)] if function else []
    other = [n for n in named if isinstance(n, str) and _KEY.fullmatch(n) and n not in own]
    others = [f"{prefix}{name}" for name in dict.fromkeys(other)][:_MOST_KEYS]
    states = [whole]
    for name, spec in whole.items():
        less = {n: s for n, s in whole.items() if n != name}
        states += [{**less, new: spec} for new in others]
        states += [{**whole, new: spec} for new in others]
        states.append(less)
    for state in itertools.islice((s for s in states if s), _MOST_STATES):
        yield Several(tuple(state.values()), "dict", tuple(state))


def _describe(value: object) -> Tensor | Value:
    """Return what may be loaded in place of a value: another one."""
    if isinstance(value, torch.Tensor):
        floating = value.is_floating_point()
        return Tensor(tuple(value.shape), "float" if floating else "int", constant=True)
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return Value(value + 1 if plain else value)  # type: ignore[operator] # then it is a number
