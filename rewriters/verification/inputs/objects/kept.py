"""What the methods of a class do with an argument of ``__init__`` that it keeps."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.values import Several, Spec, Value
from npufix.rewriters.verification.inputs.objects.configurations import (
    list_answers,
    list_settings,
)
from npufix.rewriters.verification.inputs.objects.placeholders import StandInPart
from npufix.rewriters.verification.inputs.source.attributes import list_kept, list_set
from npufix.rewriters.verification.inputs.source.declarations import (
    Declarations,
    read_declarations,
)
from npufix.rewriters.verification.inputs.source.parameters import WIDTH, guess_scalars, see_through
from npufix.rewriters.verification.inputs.source.path_conditions import find_compared_constants
from npufix.rewriters.verification.inputs.source.training.loops import find_batches, find_result
from npufix.rewriters.verification.inputs.source.training.losses import find_class_weights
from npufix.rewriters.verification.inputs.source.usage import Use
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.rewriters.verification.calls.values import Find
    from npufix.rewriters.verification.inputs.source.parameters import Parameter

_READ_S = 5.0
NOT_THE_USERS = frozenset({*sys.stdlib_module_names, "torch", "numpy"})
_NAMES = {"modules": ("",), "parameters": ("weight",), "buffers": ("running_mean",)}
"""Of the parts of a layer, as others call them."""
_NUMBERS = 2
_OF_LIST = r"|(Optional\[)?(typing\.)?(List|list|Sequence)\[int\]\]?( \| None)?"
_PICKED = ((0,), (1, 0))
"""Places of what anything has two of."""
_OF_LISTS = frozenset({"list", "tuple", "sorted", "len"})
_ITEMS = (3, 1, 4, 2, 7, 5, 6)
_MOST_SIZES = 6
_BARE_LIST = r"((typing\.)?(List|list|Sequence|Iterable))?"
_PLAIN = r"(?:(?:int|float|bool|str|None|(?:typing\.)?(?:Optional|Union))\b|[\s,|\[\]])+"
_ORDERS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
_TORCH = ("torch", "F", "nn", "torch.nn", "nn.functional", "torch.nn.functional")
_OF_OTHERS = frozenset(
    [
        *("to", "float", "half", "double", "type", "cpu", "cuda", "npu", "apply", "split", "item"),
        *("size", "dim", "copy_", "count", "index", "register_hook", "requires_grad_", "norm"),
    ]
)
"""What modules, strings, numbers and lists are asked as well."""
_OF_TENSORS = frozenset({"clone", "detach", "gather", "index_select", "masked_fill", "new_zeros"})
"""And what tensors alone are."""


def find_kept_use(owner: type, name: str, *, called: bool) -> Use:
    """Return what methods do with ``self.model`` of ``__init__(self, model)``.

    ``called`` says that they call it, by whatever is made of it.
    """
    source, tree = read_methods(owner)
    methods = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    kept = next((a for m in methods for a, given in list_kept(m) if given == name), name)
    own = f"self.{kept}"
    gives = find_result(methods, own)
    walks = (n.iter for n in ast.walk(tree) if isinstance(n, ast.For | ast.comprehension))
    return Use(
        looped=bool({name, own} & set(map(ast.unparse, walks))),
        called=called or gives is not None,
        attributes=set(re.findall(rf"(?<![\w.])(?:self\.{kept}|{name})\.(\w+)", source)),
        batches=find_batches(methods, own),
        gives=gives,
    )


def is_layer(owner: type, name: str) -> bool:
    """Say whether an argument of ``__init__`` is kept and called, as ``self.downsample(x)`` is.

    ``name`` may be a pattern of what is made of it.
    """
    source, tree = read_methods(owner)
    made = re.compile(rf"{name}(?!\w|\()")
    kept = [attribute for attribute, v in list_set(tree) if made.match(ast.unparse(v))]
    return any(re.search(rf"self\.{attribute}\(", source) for attribute in kept)


def count_results(owner: type, name: str) -> int:
    """Return how many results methods take of a layer that ``__init__`` is given, 0 for one.

    2 for ``x, weights = self.attention(x, x)`` and for ``self.attention(x, x)[0]``.
    """
    _, tree = read_methods(owner)
    called = {s for s in _list_spellings(tree, name) if s.startswith("self.")} | {f"self.{name}"}
    for node in ast.walk(tree):
        value = getattr(node, "value", None)
        if not isinstance(value, ast.Call) or ast.unparse(value.func) not in called:
            continue
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            return len(node.targets[0].elts)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            at = node.slice.value
            return max(at + 1, 2) if type(at) is int else 0
    return 0


def count_parts(made: object) -> None:
    """Have stand-ins for parts whose classes are missing return as much as methods take."""
    for name, part in (*getattr(made, "_modules", {}).items(),):
        if isinstance(part, StandInPart):
            part.count = count_results(type(made), name)


def makes_layer(owner: type, name: str) -> bool:
    """Say whether an argument of ``__init__`` makes what is kept and called.

    ``self.norm = norm_layer(dim)`` beside ``self.norm(x)``.
    """
    source, tree = read_methods(owner)
    made = (a for a, v in list_set(tree) if isinstance(v, ast.Call) and _is_named(v.func, name))
    return any(re.search(rf"self\.{attribute}\(", source) for attribute in made)


def _is_named(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def picks(owner: type, name: str) -> bool:
    """Say whether an argument of ``__init__`` says which to take: ``loss[self.classes]``."""
    _, tree = read_methods(owner)
    own = _list_spellings(tree, name)
    slices = (n.slice for n in ast.walk(tree) if isinstance(n, ast.Subscript))
    every = (one for s in slices for one in (s.elts if isinstance(s, ast.Tuple) else [s]))
    return any(ast.unparse(one) in own for one in every)


def weighs_classes(owner: type, parameter: Parameter) -> bool:
    """Say whether an argument of ``__init__``, as it is or as an attribute, weighs classes."""
    if parameter.default is not None:
        return False
    source, tree = read_methods(owner)
    name = parameter.name
    kept = {name, *re.findall(rf"self\.(\w+)(?:: [^=\n]+)? = {name}\b(?!\()", source)}
    return bool(kept & find_class_weights(tree))


def find_tensor_use(owner: type, name: str) -> set[str]:
    """Return what ``__init__`` does with an argument that is done with tensors alone.

    ``log`` and ``register_buffer`` for ``self.register_buffer("log_sigmas", sigmas.log())``;
    ``index`` where methods do that with what it keeps: ``self.table[row].clone()``.
    """
    _, tree = read_methods(owner)
    init = next((n for n in ast.walk(tree) if getattr(n, "name", "") == "__init__"), None)
    found: set[str] = set()
    for node in ast.walk(init) if init is not None else ():
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        called, of = node.func.attr, ast.unparse(node.func.value)
        kept = called in {"register_buffer", "Parameter"}
        first = node.args[called == "register_buffer" :][:1]
        passed = bool(first) and ast.unparse(first[0]) == name and (kept or of in _TORCH)
        of_tensor = hasattr(torch.Tensor, called) and called not in _OF_OTHERS
        if (passed and (kept or of_tensor)) or (of == name and of_tensor):
            found.add(called)
    return found | ({"index"} if _is_table(tree, name) else set())


def _is_table(tree: ast.AST, name: str) -> bool:
    """Say whether methods do with rows of an argument what is done with tensors alone."""
    asked = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr in _OF_TENSORS]
    held = (n.value.value if isinstance(n.value, ast.Subscript) else n.value for n in asked)
    return not _list_spellings(tree, name).isdisjoint(map(ast.unparse, held))


def list_told(owner: type, parameter: Parameter, find: Find) -> list[Spec]:
    """Return what methods tell of an argument of ``__init__``: texts, names, that it is a number.

    ``"cls"`` for ``if kind == "cls"``, beside ``kind: str = "mean"`` too.
    """
    if not parameter.has_default:
        return list_allowed(owner, parameter.name, find) or list_names(owner, parameter.name)
    if parameter.default is not None and not isinstance(parameter.default, str):
        return []
    listed = re.fullmatch(_OF_LIST, parameter.annotation)
    if listed and parameter.default is None and picks(owner, parameter.name):
        return [Several(tuple(map(Value, places)), "list") for places in _PICKED]
    found = list_allowed(owner, parameter.name, find)
    unsaid = parameter.default is None and not (parameter.annotation or found)
    if unsaid and not guess_scalars(parameter) and is_number(owner, parameter.name):
        return guess_scalars(replace(parameter, annotation="int|float"))[:_NUMBERS]
    return found


def list_allowed(owner: type, name: str, find: Find) -> list[Spec]:
    """Return the texts that methods compare an argument of ``__init__`` with.

    ``"binary"`` for ``assert mode in {BINARY, "multilabel"}``, where ``find`` knows ``BINARY``.
    """
    _, tree = read_methods(owner)
    compared = find_compared_constants(tree, "__init__", find).get(name, ())
    return [Value(value) for value in compared if isinstance(value, str)]


def list_names(owner: type, name: str) -> list[Spec]:
    """Return names that methods look for in an argument of ``__init__``, as of any layer.

    ``for n, m in model.named_modules(): if n in layers``
    """
    _, tree = read_methods(owner)
    kept = _list_spellings(tree, name)
    looked = {
        ast.unparse(node.left)
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.In | ast.NotIn)
        and ast.unparse(node.comparators[0]) in kept
    }
    for loop in (n for n in ast.walk(tree) if isinstance(n, ast.For | ast.comprehension)):
        method = re.search(r"\.named_(modules|parameters|buffers)\(\)$", ast.unparse(loop.iter))
        named = isinstance(loop.target, ast.Tuple) and ast.unparse(loop.target.elts[0]) in looked
        if method and named:
            return [Value(_NAMES[method[1]])]
    return []


def _list_spellings(tree: ast.AST, name: str) -> set[str]:
    """Return how methods spell an argument of ``__init__``: by its name, and as what is kept."""
    methods = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    return {f"self.{a}" for m in methods for a, given in list_kept(m) if given == name} | {name}


def list_items(owner: type, parameter: Parameter) -> list[Spec]:
    """Return some numbers for an argument of ``__init__`` that methods make a list of.

    Sizes, as many as methods ask for one by one: two for ``nn.Linear(shapes[1], shapes[0])``.
    """
    if parameter.has_default or not re.fullmatch(_BARE_LIST, parameter.annotation):
        return []
    _, tree = read_methods(owner)
    calls = (n for n in ast.walk(tree) if isinstance(n, ast.Call) and len(n.args) > 0)
    taken = {ast.unparse(n.args[0]) for n in calls if getattr(n.func, "id", "") in _OF_LISTS}
    if parameter.name in taken and not parameter.annotation:
        return [Value(_ITEMS)]
    own = _list_spellings(tree, parameter.name)
    parts = (n for n in ast.walk(tree) if isinstance(n, ast.Subscript))
    asked = [ast.unparse(n.slice) for n in parts if ast.unparse(n.value) in own]
    count = max((int(at) + 1 for at in asked if at.isdecimal()), default=0)
    sizes = [[WIDTH] * count, [WIDTH, 2 * WIDTH, *_ITEMS][:count]]
    return [Several(tuple(map(Value, s)), "list") for s in sizes if 0 < count <= _MOST_SIZES]


def list_parts(owner: type, name: str) -> tuple[dict[str, object], list[str]]:
    """Return what methods ask an argument of ``__init__`` for, and what has parts of its own."""
    tree = read_methods(owner)[1]
    inner = [n for n, held in list_settings(tree, name).items() if held]
    return {n: v for n, v in list_answers(tree, name).items() if n not in inner}, inner


def is_number(owner: type, name: str) -> bool:
    """Say whether methods calculate with an argument of ``__init__``: ``weight * extra``."""
    _, tree = read_methods(owner)
    kept = _list_spellings(tree, name)
    for node in ast.walk(tree):
        parts: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult | ast.BitOr):
            parts = [node.left, node.right]
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], _ORDERS):
            parts = [node.left, *node.comparators]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") in {"min", "max", "range"}:
            parts = node.args
        if any(isinstance(p, ast.Name | ast.Attribute) and ast.unparse(p) in kept for p in parts):
            return True
    return False


def list_passed_on(owner: type, build: Callable[[], object]) -> list[str]:
    """Return the arguments that ``__init__`` needs for what it passes ``**kwargs`` on to.

    ``dim`` where ``build`` fails with "Inner.__init__() missing 1 required positional argument".
    """
    signature = try_call(lambda: inspect.signature(owner), _READ_S).value
    kinds = signature.parameters.values() if isinstance(signature, inspect.Signature) else ()
    if not any(p.kind is p.VAR_KEYWORD for p in kinds):
        return []
    missing = re.search(r"missing \d+ required .*?arguments?: (.*)", try_call(build, _READ_S).error)
    return re.findall(r"'(\w+)'", missing[1]) if missing else []


def is_plain(annotation: str) -> bool:
    """Say whether an annotation is of numbers and texts alone: ``p: float``, made a layer of."""
    return re.fullmatch(_PLAIN, annotation) is not None


def is_pair(owner: type, name: str) -> bool:
    """Say whether methods unpack an argument of ``__init__``: ``h, w = self.input_resolution``."""
    _, tree = read_methods(owner)
    methods = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    kept = {f"self.{a}" for m in methods for a, given in list_kept(m) if given == name} | {name}
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and len(node.targets[0].elts) == 2  # noqa: PLR2004 - a height and a width
        and ast.unparse(node.value) in kept
        for node in ast.walk(tree)
    )


def read_init(owner: type) -> Declarations:
    """Return what the text of ``__init__`` and of the class says of the arguments."""
    source, _ = read_methods(owner)
    return read_declarations(f"class _:\n    {owner.__doc__ or ''!r}\n{source}", "_.__init__")


@lru_cache(maxsize=4)  # each argument of ``__init__`` asks
def read_methods(owner: type) -> tuple[str, ast.AST]:
    """Return the text of the methods of a class and of the user's that it inherits, and its syntax.

    Those of the class itself come first.
    """
    own = [k for k in owner.__mro__ if k.__module__.partition(".")[0] not in NOT_THE_USERS]
    held = [m for kind in own or [owner] for m in vars(kind).values() if inspect.isfunction(m)]
    methods = map(see_through, held)
    texts = (try_call(lambda m=m: inspect.getsource(m), _READ_S).value for m in methods)  # type: ignore[misc] # a default binds it
    source = "".join(f"{text}\n" for text in texts)  # the last of a file may end without one
    tree = try_call(lambda: ast.parse(f"class _:\n{source}"), _READ_S).value
    return source, tree if isinstance(tree, ast.AST) else ast.Module([], [])
