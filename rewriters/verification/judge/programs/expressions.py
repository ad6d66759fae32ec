"""Arguments as the Python text that makes them."""

from __future__ import annotations

import ast
import math
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.inputs.objects.configurations import Answer, StandInConfig
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Mapping

_MOST_NUMBERS = 4096
_MATRIX = 2
_BUILD_S = 5.0


class CannotSpellError(Exception):
    """It cannot be written as text; the message says what."""


def write_expression(value: object, namespace: Mapping[str, object]) -> str:
    """Return an expression for ``value``; ``namespace`` is what its module defines.

    Raises:
        CannotSpellError: there is none, as for a module or a large tensor.

    """
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, torch.device):
        return f"torch.{value!r}"
    if type(value) in {tuple, list} and isinstance(value, tuple | list):
        items = ", ".join(write_expression(item, namespace) for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items}{',' if value else ''})"
    if type(value) is dict:
        pairs = (f"{key!r}: {write_expression(item, namespace)}" for key, item in value.items())
        return "{" + ", ".join(pairs) + "}"
    # inf and nan are names of the program.
    special = isinstance(value, float) and not math.isfinite(value)
    return repr(value) if special or _is_literal(value) else _object(value, namespace)


def _tensor(value: torch.Tensor) -> str:
    if value.numel() > _MOST_NUMBERS:
        raise CannotSpellError(f"a tensor of {value.numel()} elements")
    if not value.numel():
        return f"torch.empty({tuple(value.shape)}, dtype={value.dtype})"
    numbers = value.detach()
    if numbers.is_floating_point():
        text = f"torch.tensor({numbers.double().tolist()}, dtype={value.dtype})"
    else:
        text = f"torch.tensor({numbers.tolist()}, dtype={value.dtype})"
    if not value.is_contiguous() and value.dim() >= _MATRIX:
        text += ".mT.contiguous().mT"
    return text


def _is_literal(value: object) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError):
        return False


def _object(value: object, namespace: Mapping[str, object]) -> str:
    """Spell a configuration: its class with what is not as by default, or its attributes alone."""
    if isinstance(value, Answer):
        return repr(value)
    known = getattr(value, "__dict__", None)
    if known is None or isinstance(value, torch.nn.Module) or callable(value):
        raise CannotSpellError(f"a {type(value).__name__}")
    if isinstance(value, StandInConfig):
        if value.has_keys:
            return write_expression(dict(known), namespace)
        texts = (f"{k}={write_expression(v, namespace)}" for k, v in known.items())
        return f"types.SimpleNamespace({', '.join(texts)})"
    plain = {k: v for k, v in known.items() if k.isidentifier() and _is_literal(v)}
    kind = type(value)
    own = namespace.get(kind.__name__) is kind
    # What is as by default stays so: the other version may have another default.
    fresh = vars(try_call(kind, _BUILD_S).value or object) if own else {}
    other = {k: v for k, v in plain.items() if k not in fresh or not _same(fresh[k], v)}
    attributes = ", ".join(f"{name}={v!r}" for name, v in other.items())
    if own:
        made = f"module.{kind.__name__}()"
        return f"having({made}, {attributes})" if attributes else made
    return f"types.SimpleNamespace({attributes})"


def _same(left: object, right: object) -> bool:
    return type(left) is type(right) and bool(left == right)
