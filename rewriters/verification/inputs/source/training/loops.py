"""What a training loop does with what it is given: the form of batches, what it reads of a model.

``for i, (images, labels) in enumerate(loader)`` goes through pairs; ``out = model(**batch)`` above
``out.loss.backward()`` says that a batch is a dictionary and that the model returns an object.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Literal, TypeAlias

from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.verification.inputs.source.training.losses import find_void_numbers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

Gives: TypeAlias = Literal["tensor", "scalar", "tuple", "dict", "object", "losses"]
_OF_BATCH = frozenset(["to", "cuda", "npu", "cpu", "items", "keys", "values", "get", "pop", "size"])
_OF_LANGUAGE = ("input_ids", "attention_mask", "labels")
"""What a batch holds that is passed on as a whole: ``model(**batch)``."""
_PASSES_ON = r"^(enumerate|iter|tqdm|trange|islice|log_every|track|zip|cycle|prefetch\w*)$"
"""What goes through the same batches as its first argument."""
_LOSS = r"(^|_)loss(es)?($|_)"
_NUMBERS = frozenset(["backward", "item"])
"""What is asked of a loss."""
_LOOPED = frozenset(["values", "items"])


@cache
def _is_of_tensor(attribute: str) -> bool:
    """Say whether tensors have an attribute; torch is loaded where a loop is read, not before."""
    import torch

    return hasattr(torch.Tensor, attribute)


@dataclass(frozen=True, slots=True)
class Item:
    """One part of a batch."""

    name: str
    kind: Literal["tensor", "list", "records"] = "tensor"
    """A tensor; a list of tensors, one for each image; or of dictionaries of such."""
    ignored: int | None = None
    """What its numbers are compared with, as none of the classes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a loop goes through, or a function is given, in the form that it takes apart."""

    kind: Literal["tuple", "dict", "object", "alone"]
    items: tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """What code reads of what a model returns."""

    kind: Gives
    names: tuple[str, ...] = ()


def find_batches(functions: Sequence[ast.AST], text: str) -> Batch | None:
    """Return the form of the batches that loops take from ``text``: ``loader``, ``self.loader``."""
    for function in functions:
        alike = {text}
        for node in walk(function):
            if isinstance(node, ast.Assign) and _passes_on(node.value, alike):
                alike |= {ast.unparse(target) for target in node.targets}
        for node in walk(function):
            target: ast.expr | None = None
            if isinstance(node, ast.For | ast.comprehension):
                if _passes_on(node.iter, alike):
                    target = node.target
                    counted = _called(node.iter) == "enumerate" and isinstance(target, ast.Tuple)
                    target = target.elts[-1] if counted else target  # type: ignore[attr-defined] # a tuple
            elif isinstance(node, ast.Assign) and _called(node.value) == "next":
                first = node.value.args[:1] if isinstance(node.value, ast.Call) else []
                target = node.targets[0] if first and _passes_on(first[0], alike) else None
            elif isinstance(node, ast.Assign) and _turns(node.value, alike):
                target = node.targets[0]
            found = None if target is None else _read_target(function, target)
            if found is not None:
                return found
    return None


def _turns(node: ast.expr, alike: Collection[str]) -> bool:
    """Say whether this has all first parts, all second ones and so on: ``zip(*samples)``."""
    if isinstance(node, ast.Call) and _called(node) in {"map", "tuple", "list"} and node.args:
        return _turns(node.args[-1], alike)
    starred = node.args[:1] if isinstance(node, ast.Call) and _called(node) == "zip" else []
    return any(isinstance(one, ast.Starred) and _passes_on(one.value, alike) for one in starred)


def _called(node: ast.expr) -> str:
    func = node.func if isinstance(node, ast.Call) else None
    return str(getattr(func, "attr", getattr(func, "id", "")))


def _passes_on(node: ast.expr, alike: Collection[str]) -> bool:
    """Say whether this goes through what one of these names holds: ``enumerate(tqdm(loader))``."""
    if isinstance(node, ast.Call) and node.args and re.search(_PASSES_ON, _called(node)):
        return _passes_on(node.args[0], alike)
    return isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node) in alike


def _read_target(function: ast.AST, target: ast.expr) -> Batch | None:
    if isinstance(target, ast.Tuple | ast.List):
        names = [getattr(one, "id", "") for one in target.elts]
        return Batch("tuple", tuple(_item(function, name) for name in names if name))
    if isinstance(target, ast.Name):
        return find_batch(function, target.id) or Batch("alone", (_item(function, target.id),))
    return None


def find_batch(function: ast.AST, name: str) -> Batch | None:
    """Return in what form a function takes a batch apart, wherever it does; None if it does not."""
    seen = _Parts()
    for node in walk(function):
        if isinstance(node, ast.Assign):
            target = node.targets[0]
            if isinstance(target, ast.Tuple) and _is_same(node.value, name):
                return _read_target(function, target)
            place = _find_place(node.value, name)
            if place is not None:
                seen.places[place] = getattr(target, "id", "") or f"part_{place}"
        elif isinstance(node, ast.Attribute) and _is(node.value, name):
            seen.whole |= node.attr in _LOOPED
            own = node.attr not in _OF_BATCH and not _is_of_tensor(node.attr)
            seen.attributes |= {node.attr: None} if own else {}
        elif isinstance(node, ast.keyword):
            seen.whole |= node.arg is None and _is(node.value, name)
        else:
            seen.note_key(node, name)
    return seen.as_batch(function)


@dataclass(slots=True)
class _Parts:
    """What is read of a batch."""

    keys: dict[str, None] = field(default_factory=dict)
    attributes: dict[str, None] = field(default_factory=dict)
    places: dict[int, str] = field(default_factory=dict)
    """What is taken from which place, by the name that it gets."""
    whole: bool = False
    """Whether it is passed on, or gone through, with all that it holds."""

    def note_key(self, node: ast.AST, name: str) -> None:
        """See ``batch["labels"]``, ``batch[1]`` and ``batch.get("mask")``."""
        key: object = _called_get(node, name)
        if isinstance(node, ast.Subscript) and _is(node.value, name):
            key = getattr(node.slice, "value", None)
        if isinstance(key, str) and key:
            self.keys[key] = None
        elif type(key) is int and key >= 0:
            self.places.setdefault(key, "labels" if key else "inputs")

    def as_batch(self, function: ast.AST) -> Batch | None:
        """Return the form that all of it tells."""
        if self.keys or self.whole:
            own = dict.fromkeys((*_OF_LANGUAGE, *self.keys)) if self.whole else self.keys
            return Batch("dict", tuple(_item(function, key) for key in own))
        if self.attributes:
            return Batch("object", tuple(Item(key) for key in self.attributes))
        every = range(max(self.places, default=-1) + 1)
        names = (self.places.get(n, f"part_{n}") for n in every)
        return Batch("tuple", tuple(_item(function, name) for name in names)) if every else None


def _called_get(node: ast.AST, name: str) -> str:
    """Return the key of ``batch.get("mask")``, ``batch.pop("labels")``."""
    func = node.func if isinstance(node, ast.Call) else None
    if not isinstance(func, ast.Attribute) or func.attr not in {"get", "pop"}:
        return ""
    key = getattr(node.args[0], "value", "") if _is(func.value, name) and node.args else ""  # type: ignore[attr-defined] # a call
    return key if isinstance(key, str) else ""


def _find_place(node: ast.expr, name: str) -> int | None:
    """Return 1 for ``batch[1].to(device)``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    if isinstance(node, ast.Subscript) and _is(node.value, name):
        key = getattr(node.slice, "value", None)
        return key if type(key) is int and key >= 0 else None
    return None


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _is_same(node: ast.expr, name: str) -> bool:
    """Say whether this has the parts of an argument: ``batch``, ``(t.to(d) for t in batch)``."""
    if isinstance(node, ast.Call) and _called(node) in {"map", "tuple", "list"} and node.args:
        return _is_same(node.args[-1], name)
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        return len(node.generators) == 1 and _is(node.generators[0].iter, name)
    return _is(node, name)


def _item(function: ast.AST, name: str) -> Item:
    """Return a part of a batch: whether a loop goes through it, and through what that holds.

    And the number that stands for none of its classes: ``labels != -100``.
    """
    ignored = min(find_void_numbers(function, name), default=None)
    for node in walk(function):
        if isinstance(node, ast.comprehension) and _is(node.iter, name):
            one = getattr(node.target, "id", "")
            inner = (n for n in walk(function) if isinstance(n, ast.Attribute))
            records = any(n.attr in _LOOPED and one and _is(n.value, one) for n in inner)
            return Item(name, "records" if records else "list", ignored)
    return Item(name, ignored=ignored)


def find_result(functions: Sequence[ast.AST], text: str) -> Result | None:
    """Return what code reads of what ``text(...)`` returns; None if nothing calls it."""
    found: list[tuple[Gives, str]] = []
    called = False
    for function in functions:
        nodes = list(walk(function))
        above = {id(child): n for n in nodes for child in ast.iter_child_nodes(n)}
        for node in nodes:
            if isinstance(node, ast.Call) and ast.unparse(node.func) in {text, f"{text}.module"}:
                called = True
                found += _read_use(nodes, above, node)
    if not called:
        return None
    for kind in ("object", "dict", "losses", "tuple", "scalar"):
        names = tuple(dict.fromkeys(name for k, name in found if k == kind))
        if kind == "tuple":
            names = _by_place(names)
        if kind == "object" and names:
            names += tuple(n for k, n in found if k == "dict" and n not in names)
        if names:
            return Result(kind, names)
    return Result("tensor")


def _by_place(found: Sequence[str]) -> tuple[str, ...]:
    """Return ``("loss", "part_1")`` for ``0=loss`` and ``1=``."""
    pairs = [(int(at), name) for at, _, name in (one.partition("=") for one in found)]
    named = {at: name for at, name in pairs if name}
    last = max((at for at, _ in pairs), default=-1)
    return tuple(named.get(at, f"part_{at}") for at in range(last + 1))


def _read_use(
    nodes: Sequence[ast.AST], above: dict[int, ast.AST], node: ast.expr
) -> Iterator[tuple[Gives, str]]:
    """Yield what is read of a result, where it is made and by the name that it gets."""
    parent = above.get(id(node))
    yield from _read_part(parent, above)
    if not isinstance(parent, ast.Assign) or parent.value is not node:
        return
    target = parent.targets[0]
    if isinstance(target, ast.Tuple):
        for at, one in enumerate(target.elts):
            yield "tuple", f"{at}={getattr(one, 'id', '')}"
    elif isinstance(target, ast.Name):
        if re.search(_LOSS, target.id) and not target.id.endswith("s"):
            yield "scalar", target.id
        for other in nodes:
            if _is(other, target.id) and isinstance(getattr(other, "ctx", None), ast.Load):
                yield from _read_part(above.get(id(other)), above)


def _read_part(parent: ast.AST | None, above: dict[int, ast.AST]) -> Iterator[tuple[Gives, str]]:
    if isinstance(parent, ast.Attribute):
        if parent.attr in _NUMBERS:
            yield "scalar", parent.attr
        elif parent.attr in _LOOPED:
            yield "losses", parent.attr
        elif not _is_of_tensor(parent.attr) and parent.attr not in _OF_BATCH:
            yield "object", parent.attr
    elif isinstance(parent, ast.Subscript):
        key = getattr(parent.slice, "value", None)
        if isinstance(key, str):
            yield "dict", key
        elif type(key) is int and key >= 0:
            names = getattr(above.get(id(parent)), "targets", [None])
            yield "tuple", f"{key}={getattr(names[0], 'id', '')}"
    elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Tuple):
        for at, one in enumerate(parent.targets[0].elts):
            yield "tuple", f"{at}={getattr(one, 'id', '')}"
