"""Several values in one argument: sizes, axes, the starts of spans, names; lists side by side."""

from __future__ import annotations

import ast
import random
import re
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from npufix.rewriters.graph.modules.syntax import last_name, walk
from npufix.rewriters.verification.calls.values import MadeArgument, Several, Spec, Value
from npufix.rewriters.verification.inputs.source.parameters import guess_scalars
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.rewriters.verification.inputs.source.parameters import Parameter
    from npufix.rewriters.verification.inputs.source.usage import Function, Use

NESTED = r"(Tuple|tuple|List|list|Sequence)\[ *(typing\.)?(Tuple|tuple|List|list)\["
_SIZE = r"size|shape|resolution|hw$"
_ORDER = r"perm(ute|utation)?($|_)"
"""Axes in another order."""
_AXES = r"(^|_)(dims?|axis|axes)$"
_OF_MODELS = r"names?$|prefix|suffix|keys$|params|parameters|layers|modules|skip|excl|incl|frozen"
"""Texts that may be those of weights."""
_PLACES = r"(^|_)(ind(ices|exes|exs)|idxs?|layers|positions|ids)$"
"""Which of several: the first ones are always there."""
_CONTAINER = r"(?i)\b(tuple|list|sequence|iterable)\[ *"
_MAPPING = (
    r"(?i)(?:typing\.)?(?:dict|(?:mutable)?mapping)(?:\[ *str, *(?:int|float|str|any|object)\])?"
)
_OF_AFFIXES = frozenset(
    {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "split", "replace"}
)
"""Methods of texts that ask for a part."""
_OF_MAPPINGS = frozenset({"items", "keys", "values", "setdefault"})
_NESTS = frozenset({"dict", "mapping", "list", "sequence", "iterable", "tuple"})
_ONES: dict[str, tuple[object, ...]] = {
    "int": (2, 0, 1, 3, 5),
    "float": (0.5, 2.0, 0.25, 1.0),
    "str": ("second", "first", "third"),
    "bool": (True, False),
}
_PARSE_S = 1.0
_OF_MODEL = re.compile(
    r"\b(\w+)(?:\.module)?\.(?:named_)?(?:parameters|buffers)\(|\b(\w+)\.state_dict\("
)
_OF_HELD: dict[str, Callable[[int], object]] = {
    "int": int,
    "float": lambda n: n / 4,
    "str": "value {}".format,
}
_PAIRS: dict[str, tuple[tuple[object, ...], ...]] = {
    "int": ((0, 2), (1, 3), (3, 5)),
    "float": ((0.5, 2.0),),
    "str": (("second", "first"),),  # not sorted, nor in the order of a dictionary of such
}


def guess_several(parameter: Parameter, use: Use) -> list[Spec]:
    """Return several plain values, for a parameter that is annotated or used like that."""
    if parameter.spread and parameter.annotation == "tuple[int, ...]":
        return [Value(sizes) for sizes in ((3, 5), (4,), (3, 2, 4))]
    nested = [*map(Value, _nest(parameter.annotation))]
    if nested and not re.search(r"(?i)tuple\[ *int", parameter.annotation):
        return [*nested]  # of several images, pairs are sizes
    listed = _guess_axes(parameter) or _guess_listed(parameter, use)
    listed = listed or _guess_sizes(parameter, use) or _guess_mapping(parameter, use)
    return [*listed, *nested]


def lengthen(specs: Sequence[Spec], use: Use) -> list[Spec]:
    """Return guesses with lists that are as long as code goes, and longer: four for ``x[3]``."""
    short = [_is_short(spec, use.length) for spec in specs]
    by_length = [
        [_repeat(s, count) if is_short else s for s, is_short in zip(specs, short, strict=True)]
        for count in (use.length, use.length + 1)
    ]
    return list(dict.fromkeys([s for made in by_length[: 1 + any(short)] for s in made]))


def _is_short(spec: Spec, length: int) -> bool:
    if not isinstance(spec, Several) or spec.keys or spec.each:
        return False
    return 0 < len(spec.items) < length


def _repeat(spec: Spec, count: int) -> Spec:
    return replace(spec, items=spec.items[:1] * count) if isinstance(spec, Several) else spec


def guess_added_up(parameter: Parameter, use: Use) -> list[Spec]:
    """Return lists of the numbers that Python adds up, whatever else may stand in a list."""
    bare = re.fullmatch(r"(typing\.)?(List|Sequence|list)|", parameter.annotation)
    return [_list_of(n) for n in ((2, 0, 1), (3, 5), (0, 0)) if bare and use.added_up]


def _nest(annotation: str) -> list[object]:
    """Return lists in lists, and dictionaries of them, for ``rows: list[list[int]]``.

    Of rows of several lengths, of equal ones, and some of which are empty.
    """
    tree = try_call(lambda: ast.parse(annotation, mode="eval").body, _PARSE_S).value
    tree = tree.left if isinstance(tree, ast.BinOp) else tree  # or None
    inner = tree.slice if isinstance(tree, ast.Subscript) else ast.Constant(0)
    if not any(isinstance(node, ast.Subscript) for node in walk(inner)):
        return []
    ways = ((3, 1, 2), (2, 2), (3, 0, 4, 1), (1, 5))
    drawn = (_draw_nested(tree, lengths, random.Random(len(lengths))) for lengths in ways)  # noqa: S311 - nobody is to be surprised
    return [made for made in drawn if made is not None]


def _draw_nested(tree: object, lengths: Sequence[int], source: random.Random) -> Any:  # noqa: ANN401 - as annotated
    """Return a value for an annotation, its rows as long as said in turn; None for any other."""
    if isinstance(tree, ast.Name) and tree.id in _ONES:
        return source.choice(_ONES[tree.id])
    if not isinstance(tree, ast.Subscript):
        return None
    parts = tree.slice.elts if isinstance(tree.slice, ast.Tuple) else [tree.slice]
    kind = last_name(tree.value).lower()
    turned = [(*lengths[n:], *lengths[:n]) for n in range(len(lengths))]
    deep = any(isinstance(part, ast.Subscript) for part in parts)
    count = len(lengths) if deep else lengths[0]
    if kind == "tuple" and ast.unparse(parts[-1]) != "...":
        items = [_draw_nested(part, lengths, source) for part in parts]
    else:
        items = [_draw_nested(parts[-1], turned[n % len(turned)], source) for n in range(count)]
    if any(item is None for item in items) or kind not in _NESTS:
        return None
    if kind in {"dict", "mapping"}:
        keys = [_draw_nested(parts[0], lengths, source) for _ in items]
        return None if None in keys else dict(zip(keys, items, strict=True))
    return tuple(items) if kind == "tuple" else items


def _guess_listed(parameter: Parameter, use: Use) -> list[Spec]:
    """Return any number of values, for ``starts: list[int]`` that a loop goes through."""
    found = re.search(rf"{_CONTAINER}(int|float|str)\b(?!\[)", parameter.annotation)
    if found is None or (found[2] == "int" and not use.looped):
        return []
    kind: Literal["tuple", "list"] = "tuple" if found[1].lower() == "tuple" else "list"
    own = re.search(_OF_MODELS, parameter.name.lower()) if found[2] == "str" else None
    pairs = (*_PAIRS[found[2]], *[("bias", "norm")] * bool(own))
    return [Several(tuple(map(Value, values)), kind) for values in pairs]


def _guess_sizes(parameter: Parameter, use: Use) -> list[Spec]:
    """Return several numbers, for ``size: Tuple[int, int]`` and ``h, w = size``."""
    numbers = re.search(r"(?i)\b(tuple|list|sequence)\[ *(int\b.*)\]", parameter.annotation)
    paired = use.paired and re.search(_SIZE, parameter.name.lower())
    if not numbers and (parameter.annotation or not paired):
        return []
    if numbers and re.search(_PLACES, parameter.name.lower()):
        as_list = numbers[1].lower() == "list"
        return [_list_of(at) if as_list else Value(at) for at in ((0,), (1, 0), (-2,))]
    count = max(2, len(re.findall(r"\bint\b", numbers[2]))) if numbers else 2
    made: list[Spec] = [Value(tuple(sizes[:count])) for sizes in ((3, 5, 2, 4), (6, 4, 7, 3))]
    if use.length > count:  # corners, margins: small enough for windows to hold something
        made = [Value(tuple(range(1, use.length + 1))), *made]
    if re.search(NESTED, parameter.annotation):  # of several images, ``List[Tuple[int, int]]``
        return [Value(tuple(s.value for s in made if isinstance(s, Value)))]
    if re.search(_ORDER, parameter.name.lower()):
        return [*(Value((*range(n - 2), n - 1, n - 2)) for n in (3, 4, 5, 2)), *made]
    return made


def _guess_mapping(parameter: Parameter, use: Use) -> list[Spec]:
    """Return dictionaries of plain values, for ``base: dict`` or what ``.items()`` is asked of.

    Two of them share some keys on each level, and have one of their own, so that a merge that goes
    one level deep differs from one that goes two.
    """
    found = re.fullmatch(_MAPPING, parameter.annotation)
    asked = not parameter.annotation and not parameter.has_default and use.attributes & _OF_MAPPINGS
    if use.keys or not (found or asked):
        return []
    own, seed = f"of_{parameter.name}", len(parameter.name) + sum(map(ord, parameter.name)) % 7
    plain = {"second": seed + 1, "first": seed, own: seed + 2}  # in no order
    held = re.sub(r"^.*, *|\]$", "", found[0]) if found and "[" in found[0] else ""
    if held in _OF_HELD:
        pieces = {"fir": seed + 6, "f": seed + 5, "s": seed + 7}  # of texts, the longest first
        pieces |= dict.fromkeys(("secondfirst", "firstsecond"), seed + 4)  # of neighbours
        return [
            Several(tuple(Value(_OF_HELD[held](n)) for n in one.values()), "dict", tuple(one))
            for one in (plain | pieces, {"second": 0, "third": seed + 1})
        ]
    deep = {"first": seed + 3, own: seed + 4}
    inner = {"third": seed + 1, "fourth": deep, own: seed + 2}
    nested = {"second": inner, "first": seed, own: seed}
    return [Value(nested), Value(plain)]


def as_arguments(values: Mapping[str, object], parameters: Sequence[Parameter]) -> dict[str, Spec]:
    """Return what to pass where tests ask for values: ``[]`` for False of ``order: list[int]``.

    And 0.0 of ``rate: float | None``.
    """
    known = {p.name: p.annotation or _name_number(p.default) for p in parameters}
    return {n: _as_annotated(v, known.get(n, "")) for n, v in values.items() if "." not in n}


def _name_number(default: object) -> str:
    return type(default).__name__ if type(default) in {int, float} else ""


def _as_annotated(value: object, annotation: str) -> Spec:
    number = re.match(r"(?:Optional\[)?(?:(int)|float)\b(?!.*\bbool\b)", annotation)
    if number is not None and isinstance(value, bool):
        return Value(int(value) if number[1] else float(value))
    kind = re.match(r"(?i)(typing\.)?(list|tuple|dict|str)\b", annotation)
    if value is not False or kind is None:
        return Value(value)
    made: dict[str, Spec] = {"list": _list_of(()), "dict": Several((), "dict"), "str": Value("")}
    return made.get(kind[2].lower(), Value(()))


def _guess_axes(parameter: Parameter) -> list[Spec]:
    """Return several axes, for ``dim: int | tuple[int, ...]``."""
    several = re.search(r"(?i)\b(tuple|list|sequence|iterable|size)\b", parameter.annotation)
    if not several or not re.search(_AXES, parameter.name.lower()):
        return []
    as_list = several[1].lower() == "list"
    return [_list_of(axes) if as_list else Value(axes) for axes in ((-1,), (0, 1), (-2, -1))]


def _list_of(numbers: Sequence[object]) -> Several:
    """Return a list, made anew for every call."""
    return Several(tuple(map(Value, numbers)), "list")


def vary_absent(parameter: Parameter, use: Use) -> list[Spec]:
    """Return plain values to pass in place of None, one of a kind."""
    if parameter.default is not None:
        return []
    return [*guess_several(parameter, use)[:2], *guess_scalars(parameter)[:1]]


def find_affixes(tree: ast.Module, qualname: str, parameters: Sequence[Parameter]) -> list[str]:
    """Return what texts are asked for by their parts: ``.bias`` of ``name.endswith(".bias")``."""
    given = {p.name: p.default for p in parameters if isinstance(p.default, str)}
    found: dict[str, None] = {}
    function = find_function(tree, qualname)
    for node in walk(function) if function is not None else ():
        match node:
            case ast.Call(func=ast.Attribute(attr=name), args=[part, *_]) if name in _OF_AFFIXES:
                parts = part.elts if isinstance(part, ast.Tuple) else [part]
            case ast.Compare(left=part, ops=[ast.In() | ast.NotIn()]):
                parts = [part]
            case _:
                continue
        for one in parts:
            text = one.value if isinstance(one, ast.Constant) else given.get(ast.unparse(one))
            found |= {text: None} if isinstance(text, str) and text else {}
    return list(found)


def affix(specs: Mapping[str, Spec], affixes: Sequence[str]) -> Iterator[dict[str, Spec]]:
    """Yield arguments with texts, keys of dictionaries too, that begin, end and go on so."""
    ways = (lambda a, t: a + t, lambda a, t: t + a, lambda a, t: t[:2] + a + t[2:])
    for way in ways:
        more = [partial(way, part) for part in affixes]
        made = {name: _affix(spec, more) for name, spec in specs.items()}
        if made != specs:
            yield made


def _affix(spec: Spec, ways: Sequence[Callable[[str], str]]) -> Spec:
    match spec:
        case Value(value=str(text), given=True) if ways:
            return Value(ways[0](text))
        case Value(value=dict(held), given=True) if all(isinstance(key, str) for key in held):
            return Value(held | {way(key): value for key, value in held.items() for way in ways})
        case Several(kind="dict"):
            items = dict(zip(spec.keys, spec.items, strict=True))
            items |= {way(key): item for key, item in items.items() for way in ways}
            return replace(spec, keys=tuple(items), items=tuple(items.values()))
        case Several(items=items):
            texts = [i.value for i in items if isinstance(i, Value) and isinstance(i.value, str)]
            more = (Value(way(text)) for way in ways for text in texts)
            return replace(spec, items=(*items, *more))
    return spec


def tell_apart(default: object) -> list[Spec]:
    """Return the numbers of a default, made different where some are equal.

    ``voxel_size=(0.2, 0.2)`` hides who takes the first for the second: ``(0.2, 0.225)``.
    """
    numbers = default if isinstance(default, tuple | list) else ()
    kinds = set(map(type, numbers))
    if len(kinds) != 1 or kinds.isdisjoint({int, float}) or len(set(numbers)) == len(numbers):
        return []
    return [_spread(numbers)]


def _spread(default: Sequence[float]) -> Spec:
    """Return other numbers, each by more than the one before it: 1, 3, 5 for 1, 2, 3."""
    whole = set(map(type, default)) == {int}
    apart = [n + at if whole else (n or 1.0) * (1 + at / 8) for at, n in enumerate(default)]
    return _list_of(apart) if isinstance(default, list) else Value(tuple(apart))


def vary_numbers(default: object) -> list[Spec]:
    """Return what may be passed in place of a default of several numbers."""
    numbers = default if isinstance(default, tuple | list) else ()
    kinds = set(map(type, numbers))
    return [_spread(numbers)] if len(kinds) == 1 and kinds <= {int, float} else []


def find_parallel(function: Function | None) -> list[frozenset[str]]:
    """Return the lists that a function goes through side by side, which are equally long.

    ``zip(self.params, grads)``, ``torch._foreach_add_(params, grads)``, and ``grads[i]`` in a loop
    ``for i, p in enumerate(params)``.
    """
    found: list[frozenset[str]] = []
    for node in walk(function) if function is not None else ():
        beside: list[ast.expr] = []
        if isinstance(node, ast.Call) and re.match(r"zip$|_foreach_", last_name(node.func)):
            beside = node.args
        elif isinstance(node, ast.For) and ast.unparse(node.iter).startswith("enumerate("):
            beside = [*node.iter.args, *_list_numbered(node)]  # type: ignore[attr-defined] # a call
        names = frozenset(name for one in beside if (name := _name_list(one)))
        found += [names] if len(names) > 1 else []
    return found


def find_twins(function: Function | None) -> list[frozenset[str]]:
    """Return the arguments that are models of one make: their weights are gone through in pairs.

    ``zip(ema.parameters(), model.parameters())`` ends with the shorter one, without a word.
    """
    found: list[frozenset[str]] = []
    for node in walk(function) if function is not None else ():
        if isinstance(node, ast.Call) and re.match(r"zip$|_foreach_", last_name(node.func)):
            owners = [_OF_MODEL.search(ast.unparse(one)) for one in node.args]
            names = frozenset(one[1] or one[2] for one in owners if one is not None)
            found += [names] if len(names) > 1 else []
    return found


def list_free(
    specs: Mapping[str, Spec], side_by_side: Sequence[frozenset[str]]
) -> dict[str, Several]:
    """Return the lists that may be of any length: beside none that is there before the call."""
    lists = {n: s for n, s in specs.items() if isinstance(s, Several) and not s.keys}
    for names in side_by_side:
        if any("." in n or isinstance(specs.get(n), MadeArgument) for n in names):
            lists = {n: s for n, s in lists.items() if n not in names}
    return lists


def _list_numbered(loop: ast.For) -> list[ast.expr]:
    """Return what a loop takes by the number of its round: ``grads[i]``."""
    number = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
    taken = (n for n in walk(*loop.body) if isinstance(n, ast.Subscript))
    return [n.value for n in taken if isinstance(number, ast.Name) and _is_name(n.slice, number.id)]


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _name_list(node: ast.expr) -> str:
    """Return what a list is called, in ``list(grads)`` too; nothing for what is computed."""
    if isinstance(node, ast.Call) and len(node.args) == 1 and isinstance(node.func, ast.Name):
        node = node.args[0]
    text = ast.unparse(node)
    return text if re.fullmatch(r"(self\.)?\w+", text) else ""
