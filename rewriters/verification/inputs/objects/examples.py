"""What the examples in docstrings say: how an object is made, and what a call is given.

``>>> head = Head(width=512, heads=8)`` and ``>>> head(torch.rand(2, 10, 512))``. Large sizes are
made small first, each to the same wherever it stands; then they are taken as written.
"""

from __future__ import annotations

import ast
import builtins
import doctest
import inspect
import itertools
import math
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from npufix.rewriters.graph.modules.syntax import last_name
from npufix.rewriters.verification.calls.surroundings import read_settings, restore_settings
from npufix.rewriters.verification.calls.values import (
    MadeArgument,
    Several,
    Spec,
    Tensor,
    Value,
    replace_tensors,
)
from npufix.rewriters.verification.inputs.source.parameters import Parameter, list_parameters
from npufix.rewriters.verification.inputs.source.shapes import ANY
from npufix.rewriters.verification.sandbox.try_call import Outcome, try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from npufix.rewriters.verification.calls.values import Find
    from npufix.rewriters.verification.inputs.source.declarations import Declared

_ROWS = 2
_RUN_S = 5.0
_FENCED = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)```", re.DOTALL)
_MOST = 4
"""Examples and calls that are looked at."""
_SMALL = 16
"""Sizes up to this are taken as written."""
_STEP = 8
"""Between larger ones: what is a multiple of 8 stays one."""
_LARGEST = 1 << 20
_OF_TORCH = {
    "torch": torch,
    "nn": torch.nn,
    "F": torch.nn.functional,
    "math": math,
    "Tensor": torch.Tensor,
}
_PLAIN = (int, float, str, bool, complex, type(None), torch.dtype, torch.device)


def read_examples(*documented: object) -> list[ast.Module]:
    """Return the examples in the docstrings of objects, each with its sizes made small and not."""
    found: list[ast.Module] = []
    for text in dict.fromkeys(filter(None, (getattr(d, "__doc__", None) for d in documented))):
        lines = try_call(lambda t=text: doctest.DocTestParser().get_examples(t), _RUN_S).value  # type: ignore[misc] # a default binds it
        sources = [e.source for e in lines] if isinstance(lines, list) else []
        statements = list[ast.stmt]()
        for source in sources or _FENCED.findall(inspect.cleandoc(text)):
            tree = try_call(lambda s=source: ast.parse(s), _RUN_S).value  # type: ignore[misc] # a default binds it
            statements += tree.body if isinstance(tree, ast.Module) else []
        if statements:
            found.append(ast.Module(statements, []))
    both = (tree for each in found[:_MOST] for tree in (_shrink(each), each))
    return list({ast.unparse(tree): tree for tree in both}.values())


def _shrink(tree: ast.Module) -> ast.Module:
    """Return an example with small sizes in the same order: 16 for 384, and 24 for 1536."""
    copied = ast.parse(ast.unparse(tree))
    numbers = [n for n in ast.walk(copied) if isinstance(n, ast.Constant) and type(n.value) is int]
    large = sorted({int(str(n.value)) for n in numbers} - set(range(_SMALL + 1)))
    small = {size: _SMALL + _STEP * at for at, size in enumerate(large)}
    for number in numbers:
        size = int(str(number.value))
        number.value = min(size, small.get(size, size))
    return copied


def list_constructions(owner: type, find: Find) -> Iterator[dict[str, Spec]]:
    """Yield what examples make an object of a class with."""
    seen: list[dict[str, Spec]] = []
    signature = try_call(lambda: inspect.signature(owner), _RUN_S).value
    if not isinstance(signature, inspect.Signature):
        return
    for tree in read_examples(owner, owner.__init__, getattr(owner, "forward", None)):  # type: ignore[misc] # of a class
        known = _Scope(find)
        for node in known.run_up_to(tree, lambda n: last_name(n.func) == owner.__name__):
            given = known.bind(node, signature)
            if given is not None and given not in seen:
                seen.append(given)
                yield given


def list_example_calls(name: str, owner: type | None, find: Find) -> Iterator[dict[str, Spec]]:
    """Yield what examples pass to a function, or to a method of an object of a class.

    To any of its methods that takes as many: metrics show a call, for an update.
    """
    function = find(name) if owner is None else getattr(owner, name, None)
    signature = try_call(lambda: inspect.signature(function), _RUN_S).value  # type: ignore[arg-type] # raises
    if not isinstance(signature, inspect.Signature):
        return
    parameters = list_parameters(signature)[int(owner is not None) :]
    texts = [function] if owner is None else [function, owner, getattr(owner, "forward", None)]
    for tree in read_examples(*texts):
        known, wanted = _Scope(find), partial(_is_call_of, tree, name, owner)
        for node in known.run_up_to(tree, wanted):
            given = known.bind(node, signature, skip=int(owner is not None))
            if given:
                whole = {p.name: given.get(p.name, _leave_out(p)) for p in parameters}
                yield whole
                # floats of any size in place of those within 0 and 1
                wide = {n: replace_tensors(s, _widen) for n, s in whole.items()}
                yield from [wide] if wide != whole else []


def with_rows(
    shown: Iterable[Mapping[str, Spec]], declared: Mapping[str, Declared]
) -> Iterator[Mapping[str, Spec]]:
    """Yield calls, then the same with rows for what may have any: ``x (*, D)`` shown with 26.

    Of a single row, nobody sees along which axis it is split.
    """
    calls = [*shown]
    yield from calls
    open_ended = {n for n, d in declared.items() if any(s[:1] == (ANY,) for s in d.shapes)}
    for given in calls:
        more = {n: replace_tensors(given[n], _with_row) for n in open_ended & given.keys()}
        yield from [{**given, **more}] if any(given[n] != one for n, one in more.items()) else []


def _with_row(tensor: Tensor) -> Tensor:
    return replace(tensor, shape=(_ROWS, *tensor.shape))


def _leave_out(parameter: Parameter) -> Value:
    return Value(parameter.default, given=False)


def _widen(tensor: Tensor) -> Tensor:
    return Tensor(tensor.shape) if tensor.kind == "unit" else tensor


def _is_call_of(tree: ast.Module, name: str, owner: type | None, node: ast.Call) -> bool:
    """Say whether a call of an example is one of a function, or of an object of a class."""
    if owner is None:
        return last_name(node.func) == name
    of = node.func.value if isinstance(node.func, ast.Attribute) else node.func
    new = isinstance(of, ast.Call) and last_name(of.func) == owner.__name__
    return new or ast.unparse(of) in _list_made(tree, owner.__name__)


def _list_made(tree: ast.Module, kind: str) -> set[str]:
    """Return the names that an example gives to objects of a class."""
    return {
        ast.unparse(target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and last_name(node.value.func) == kind
        for target in node.targets
    }


class _Scope:
    """The names of an example, as far as it has run; the user's module knows the others."""

    def __init__(self, find: Find) -> None:
        self._names: dict[str, Any] = {**_OF_TORCH, "__builtins__": vars(builtins)}
        self._find = find

    def run_up_to(self, tree: ast.Module, wanted: Callable[[ast.Call], bool]) -> Iterator[ast.Call]:
        """Run an example, and yield the calls that are wanted, each before its statement runs."""
        found = 0
        for statement in tree.body:
            calls = [n for n in ast.walk(statement) if isinstance(n, ast.Call) and wanted(n)]
            for call in calls[: _MOST - found]:
                found += 1
                yield call
            if found == _MOST:
                return
            if not calls or isinstance(statement, ast.Assign):
                code = compile(ast.Module([statement], []), "<an example>", "exec")
                self._look_up(statement)
                _run(lambda code=code: exec(code, self._names))  # type: ignore[misc] # noqa: S102 - the user's own, behind the walls

    def _look_up(self, node: ast.AST) -> None:
        for name in {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}:
            known = None if name in self._names else self._find(name)
            if known is None and hasattr(torch, name) and not hasattr(builtins, name):
                known = getattr(torch, name)  # from torch import tensor, zeros
            if known is not None:
                self._names.setdefault(name, known)

    def bind(
        self, call: ast.Call, signature: inspect.Signature, skip: int = 0
    ) -> dict[str, Spec] | None:
        """Return the arguments of a call by name; None if some cannot be made again."""
        unpacked = any(isinstance(a, ast.Starred) for a in call.args)
        if unpacked or any(k.arg is None for k in call.keywords):
            return None
        self._look_up(call)
        positional = [self._describe(a) for a in call.args]
        named = {str(k.arg): self._describe(k.value) for k in call.keywords}
        if None in positional or None in named.values():
            return None
        bound = try_call(lambda: signature.bind(*(None,) * skip, *positional, **named), _RUN_S)
        if not isinstance(bound.value, inspect.BoundArguments):
            return None
        kinds = {p.kind for n, p in signature.parameters.items() if n in bound.value.arguments}
        if kinds & {inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL}:
            return None
        return dict(itertools.islice(bound.value.arguments.items(), skip, None))

    def _describe(self, node: ast.expr) -> Spec | None:
        code = compile(ast.Expression(node), "<an example>", "eval")
        outcome = _run(lambda: eval(code, self._names))  # noqa: S307 - as above
        if outcome.error:
            return None
        alone = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} <= {"torch"}
        if isinstance(outcome.value, torch.nn.Module):
            text = ast.unparse(node)
            made = MadeArgument(lambda: eval(code, {"torch": torch}), text, text)  # noqa: S307 - as above
            return made if alone else None
        return describe(outcome.value)


def _run(call: Callable[[], object]) -> Outcome:
    """Run a part of an example, which the original alone does, and keep the settings of torch."""
    settings = read_settings()
    outcome = try_call(call, _RUN_S)
    restore_settings(settings)
    return outcome


def describe(value: object) -> Spec | None:
    """Return what makes values like one: tensors of its shape; None if nothing is known to."""
    if isinstance(value, torch.Tensor):
        return _describe_tensor(value)
    of_torch = isinstance(value, type) and value.__module__.startswith("torch.")
    if of_torch or isinstance(value, _PLAIN):
        return Value(value)
    if type(value) not in {list, tuple, dict} or not isinstance(value, list | tuple | dict):
        return None
    keys = tuple(value) if isinstance(value, dict) else ()
    items = [describe(v) for v in (value.values() if isinstance(value, dict) else value)]
    known = tuple(i for i in items if isinstance(i, Tensor | Value))
    if len(known) == len(items) and all(isinstance(k, str) for k in keys):
        return Several(known, type(value).__name__, keys)  # type: ignore[arg-type] # one of three
    text = repr(value)  # plain values in lists of lists
    same = try_call(lambda: ast.literal_eval(text) == value, _RUN_S).value is True
    return MadeArgument(lambda: ast.literal_eval(text), text, text) if same else None


def _describe_tensor(value: torch.Tensor) -> Tensor | None:
    if value.is_sparse or value.numel() > _LARGEST:
        return None
    shape = tuple(value.shape)
    if value.is_complex():
        return Tensor(shape, "complex")
    if value.dtype == torch.bool:
        return Tensor(shape, "bool")
    if value.is_floating_point():
        within = value.numel() > 0 and value.min() >= 0 and value.max() <= 1
        return Tensor(shape, "unit" if within else "float")
    own = None if value.dtype == torch.int64 else value.dtype
    most = int(value.max()) + 1 if value.numel() else 2
    sound = bool(value.numel()) and int(value.min()) >= 0
    return Tensor(shape, "int", max(most, 2), dtype=own, sound=sound)
