"""What holds for the arguments of a function, as far as its text or its user says.

Docstrings, annotations and comments give shapes in which equal names are equal sizes; unpacking,
einsum and permute give the number of dimensions. A call that does not fit is one that no caller
makes, and shows nothing.
"""

from __future__ import annotations

import ast
import itertools
import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.graph.modules.syntax import list_defaults, parse_once, walk
from npufix.rewriters.verification.calls.values import (
    Promise,
    Several,
    Spec,
    Tensor,
    Value,
    list_tensors,
)
from npufix.rewriters.verification.inputs.source import bounds
from npufix.rewriters.verification.inputs.source.assumed_shapes import (
    list_comments,
    parse_assumption,
    read_comments_of_signature,
    read_shown,
)
from npufix.rewriters.verification.inputs.source.attributes import find_class, find_init
from npufix.rewriters.verification.inputs.source.operands import list_lettered, list_spread
from npufix.rewriters.verification.inputs.source.parameters import (
    HEADS,
    LIKELY_SIZES,
    name_sizes,
    read_default_sizes,
)
from npufix.rewriters.verification.inputs.source.promises import (
    find_rising,
    find_unpacked_settings,
    list_multiples,
    list_told_apart,
    read_from_one,
    read_products,
    read_promises,
)
from npufix.rewriters.verification.inputs.source.shapes import (
    ANY,
    EVERY,
    DeclaredKind,
    Said,
    Shape,
    evaluate_size,
    list_meant,
    read_annotation,
    read_multiples,
    read_sizes,
    read_text,
    spell_annotations,
    unify,
)
from npufix.rewriters.verification.inputs.source.siblings import list_siblings, read_uses
from npufix.rewriters.verification.inputs.source.texts.types import read_types
from npufix.rewriters.verification.inputs.source.usage import (
    Function,
    Use,
    find_function,
    list_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_OVER_HEADS = 4
_BELOW_ZERO = r"ignore|negative|-\d+ for|\bpad|-1\b.*\b(where|if|means)"
"""What says that not all whole numbers name something."""
_OTHER = (3, 5, 7, 6, 9, 10, 11, 13, 14, 15, 17, 18, 19)
_LONG, _FLAGS = "LongTensor", {"zero-one"}
_PARTS = 2
_NO_COLUMNS = frozenset("HWLNST")
_SOME = (2, 3)
"""What ``...`` stands for, first."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What holds for one argument."""

    shapes: tuple[Shape, ...] = ()
    kinds: frozenset[DeclaredKind] = frozenset()
    use: Use = field(default_factory=Use)
    below: str = ""
    """A size that its whole numbers are less than, from 0: a name, a number, ``n + 1``."""
    least: int = 0
    """What its whole numbers are at least, where that or ``below`` is said."""
    narrow: torch.dtype | None = None
    """What type its whole numbers are of, where that is not int64."""
    boxes: bool = False
    """Whether a text says that it holds corners."""
    type: str = ""
    """What type a docstring says that it is of, as an annotation."""
    rises: bool = False
    """Whether its numbers are in order: edges in which others are searched for."""
    promise: Promise | None = None
    """What each row of its flags holds, if a text says that: "at least one valid key"."""
    held: Mapping[str, tuple[Declared, list[tuple[int, ...]]]] = field(default_factory=dict)
    """What holds for the values of a dictionary, by their keys, and their shapes in numbers."""

    @property
    def is_tensor(self) -> bool:
        """Whether it must be one."""
        return bool(self.shapes or self.use.dims or self.use.least)

    def takes(self, tensor: Tensor) -> bool:
        """Say whether a tensor has dimensions and numbers of the right kind."""
        other = self.narrow is not None and tensor.dtype != self.narrow
        other |= self.promise is not None and tensor.shape[-1:] == (0,)
        other |= tensor.kind == "int" and tensor.low < self.least and bool(self.least or self.below)
        return not other and self._takes_kind(tensor) and self._takes_dims(len(tensor.shape))

    def _takes_dims(self, count: int) -> bool:
        if self.shapes:
            return True  # looked at with those of the others
        dims, least = self.use.dims, self.use.least
        return count >= least and (not dims or self.use.tested or count in dims)

    def _takes_kind(self, tensor: Tensor) -> bool:
        said, kind = self.kinds, tensor.kind
        if not said:
            return kind != "bool" or not self.use.summed
        numbers = said - {"zero-one"}
        if kind == "int" and tensor.high > 2 and "zero-one" in said:  # noqa: PLR2004 - 0 and 1
            return False
        if not numbers:
            return kind in {"bool", "int", "binary"}
        if kind in {"float", "unit", "box"}:
            return "float" in numbers and "zero-one" not in said
        if kind in {"additive", "binary"}:
            return bool(numbers & {"additive", "float"}) if kind == "additive" else "float" in said
        return ("complex" if kind == "rotation" else kind) in numbers


_UNKNOWN = Declared()  # of which nothing is said: a search asks with every call


@dataclass(frozen=True, slots=True)
class Declarations:
    """What holds for the arguments of a function."""

    arguments: Mapping[str, Declared] = field(default_factory=dict)
    assumed: frozenset[str] = frozenset()
    """Those of which the user says it, and not the text."""
    given: Mapping[str, int] = field(default_factory=dict)
    """Sizes that the object is made with, by the names of its arguments."""
    times: int = 1
    """What every size with a name is a multiple of."""
    multiples: Sequence[tuple[str, str]] = ()
    """Sizes that are multiples of others."""
    unpacked: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the sizes that attributes of the object hold: ``h, w = self.resolution``."""
    apart: frozenset[str] = frozenset()
    """Names that the text gives to several sizes, and the code tells apart."""
    limits: Sequence[bounds.Bound] = ()
    """Numbers that are at most as large as others."""

    def of(self, name: str) -> Declared:
        """Return what holds for one argument."""
        return self.arguments.get(name, _UNKNOWN)

    @property
    def shaped(self) -> bool:
        """Whether any shape is known."""
        return any(declared.shapes for declared in self.arguments.values())

    def without_texts(self) -> Declarations:
        """Return what the user says, for a text that says what the code does not take."""
        given = self.arguments.items()
        plain = {n: Declared(use=d.use.in_loops) for n, d in given}
        sure = {n: d for n, d in self.arguments.items() if n in self.assumed}
        return replace(self, arguments={**plain, **sure}, multiples=(), limits=())

    def made_with(self, arguments: Sequence[tuple[str, Spec]]) -> Declarations:
        """Return what holds for an object that is made with these arguments."""
        return replace(self, given=self._sizes_with(arguments))

    def _sizes_with(self, arguments: Iterable[tuple[str, Spec]]) -> dict[str, int]:
        given = {n: s.value for n, s in arguments if isinstance(s, Value)}
        held = {n: v for n, v in given.items() if isinstance(v, tuple)}
        for name in held.keys() & self.unpacked.keys():
            given |= dict(zip(self.unpacked[name], held[name], strict=False))
        sizes = {n: value for n, value in given.items() if type(value) is int and value > 0}
        return {**self.given, **sizes}

    def fits(self, specs: Mapping[str, Spec]) -> bool:
        """Say whether arguments are such that a caller makes."""
        shaped: list[tuple[tuple[Shape, ...], tuple[int, ...]]] = []
        ranks: set[int] = set()
        inner = {
            name_item(n, key): item
            for n, s in specs.items()
            if isinstance(s, Several) and (s.keys or self.of(n).use.listed)
            for key, item in zip(s.keys or self.of(n).use.keys, s.items, strict=False)
        }
        specs = {**specs, **inner}
        for name, spec in specs.items():
            declared = self.of(name)
            for tensor in list_tensors(spec):
                if not declared.takes(tensor):
                    return False
                one = (self._rename_apart(name), tensor.shape)
                if declared.shapes and isinstance(spec, Tensor):
                    shaped.append(one)
                elif declared.shapes and not any(True for _ in unify([one], {})):
                    return False  # what a list holds may be of different lengths
                over_heads = len(tensor.shape) == _OVER_HEADS and "mask" in name.lower()
                if re.search(HEADS, name.lower()):
                    ranks.add(len(tensor.shape))
                elif over_heads and declared.shapes and self._says_nothing_of_heads():
                    ranks.add(_OVER_HEADS)
        # Queries, keys and values have as many dimensions, as has their mask, if the text says so.
        sizes = self._sizes_with(specs.items())
        heads = (d for n, d in self.arguments.items() if re.search(HEADS, n.lower()))
        # but for ``einsum("nbh,bh->nb", keys, query)``
        told = all(len({*map(len, d.shapes)}) == 1 and ANY not in d.shapes[0] for d in heads)
        return (told or len(ranks) <= 1) and any(
            all(self._is_below(n, s, known) for n, s in specs.items())
            and not any(known.get(m, 0) % (_count(known, n) or 1) for m, n in self.multiples)
            and bounds.are_within(self.limits, specs, known)
            for known in unify(shaped, sizes)
        )

    def _says_nothing_of_heads(self) -> bool:
        heads = [d for n, d in self.arguments.items() if re.search(HEADS, n.lower())]
        return bool(heads) and not any(d.shapes for d in heads)

    def _rename_apart(self, name: str) -> tuple[Shape, ...]:
        shapes = self.of(name).shapes
        if not (shapes and self.apart):
            return shapes
        own = {size: f"{size}_of_{name}" for size in self.apart if name not in self.assumed}
        return tuple(tuple(own.get(size, size) for size in shape) for shape in shapes)

    def _is_below(self, name: str, spec: Spec, sizes: Mapping[str, int]) -> bool:
        """Say whether whole numbers are less than what the text says, as far as that is known."""
        most = self._most(name, sizes)
        return most is None or all(t.kind != "int" or t.high <= most for t in list_tensors(spec))

    def _most(self, name: str, sizes: Mapping[str, int]) -> int | None:
        below = self.of(name).below
        parsed = read_sizes((below,)) if below else None
        return evaluate_size(parsed[0], sizes) if parsed else None

    def widen(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        """Return arguments with whole numbers of all that the text allows: each of n experts."""
        tensors = [(n, s) for n, s in specs.items() if isinstance(s, Tensor)]
        shaped = [(self.of(n).shapes, s.shape) for n, s in tensors if self.of(n).shapes]
        sizes = self._sizes_with(specs.items())
        sizes = {**sizes, **next(iter(unify(shaped, self.given)), {})}
        most = {n: self._most(n, sizes) or s.high for n, s in tensors if s.kind == "int"}
        wide = {n: replace(s, high=max(most[n], s.high)) for n, s in tensors if n in most}
        return {**specs, **wide}

    def list_shapes(self, name: str, width: int) -> list[tuple[int, ...]]:
        """Return shapes in numbers for an argument, equal names being equal sizes."""
        found: list[tuple[int, ...]] = []
        # what an object is made for, ``dim=8``, may be the size that a shape calls C
        for shape, alike in itertools.product(self.of(name).shapes, (False, True)):
            chosen = self._choose_sizes(width, alike=alike).items()
            sizes = {n: self.times * size for n, size in chosen} | {**self.given}
            for some in (_SOME, _SOME[1:], ()) if ANY in shape else ((),):
                parsed = read_sizes(tuple(size for size in shape if size != ANY))
                numbers = [evaluate_size(size, sizes) for size in parsed or ()]
                known = [n for n in numbers if n is not None and n >= 0]
                if parsed is not None and len(known) == len(parsed):
                    at = shape.index(ANY) if ANY in shape else len(known)
                    found.append((*known[:at], *some, *known[at:]))
        if "mask" in name.lower() and self._says_nothing_of_heads():
            # queries and keys of which nothing is said, and one ``mask (B, 1, T, S)`` of both
            ends = [shape[-2:] for shape in self.of(name).shapes]
            squared = any(len(e) > 1 and all(size.isidentifier() for size in e) for e in ends)
            found += [(*shape[:-1], shape[-2]) for shape in found if squared and len(shape) > 1]
        return list(dict.fromkeys(found))

    def find_size(self, name: str, width: int) -> int | None:
        """Return the size that a number is called by: ``h`` of ``tokens (B, h * w, D)``."""
        return {n: self.times * s for n, s in self._choose_sizes(width).items()}.get(name)

    def holding(self, name: str, width: int) -> Declared:
        """Return what holds for an argument, and for what it holds if it is a dictionary."""
        one = self.of(name)
        items = {key: name_item(name, key) for key in one.use.keys}
        shaped = {k: (self.of(n), self.list_shapes(n, width)) for k, n in items.items()}
        return replace(one, held=shaped)

    def _choose_sizes(self, width: int, *, alike: bool = False) -> dict[str, int]:
        names: dict[str, None] = {}
        shapes = [shape for declared in self.arguments.values() for shape in declared.shapes]
        for shape in shapes:
            for size in read_sizes(tuple(s for s in shape if s != ANY)) or ():
                names |= {n.id: None for n in walk(size) if isinstance(n, ast.Name)}
        # ``cond (B, K)``, for an object that is made with ``cond_dim=8``
        columns = {s[-1] for s in shapes if alike and len(s) > 1} - _NO_COLUMNS
        fixed = {int(n) for n in itertools.chain(*shapes) if n.isdecimal()}  # 3 of ``(N, 3)``
        chosen: dict[str, int] = {}
        for name in names:
            likely = next(
                (s for pattern, s in LIKELY_SIZES if re.search(pattern, name.lower())), ()
            )
            wide = bool(likely) and likely[0] == LIKELY_SIZES[-1][1][0]
            if not likely and name in columns and width in self.given.values():
                chosen[name] = width
                continue
            if wide:
                likely = (width, *likely)
            taken = {*chosen.values(), *fixed, *(() if wide and alike else self.given.values())}
            free = (n for n in (*likely, *_OTHER) if n not in taken)
            chosen[name] = next(free, width)
        for many, part in self.multiples:
            if many in chosen and part not in self.given:
                into = int(part) if part.isdecimal() else chosen.setdefault(part, _PARTS)
                chosen[many] *= 1 if chosen[many] % into == 0 else into
        chosen = bounds.choose_within(self._list_bounded(), chosen, self.given)
        # Numbers that no shape names: two windows high, three wide, so that they are told apart.
        known = {**chosen, **self.given}
        parts = ((many, _count(known, part)) for many, part in self.multiples)
        cut = {many: size for many, size in parts if size and many not in chosen}
        return chosen | {many: n * size for n, (many, size) in enumerate(cut.items(), _PARTS)}

    def _list_bounded(self) -> Iterator[tuple[str, str]]:
        """Yield the numbers that have a bound, and the size that it is, if that has a name."""
        for small, name, axis, _ in self.limits:
            for shape in ((name,),) if axis is None else self.of(name).shapes:
                at = axis or 0
                if ANY not in shape and at in range(-len(shape), len(shape)):
                    yield small, shape[at]


def _count(sizes: Mapping[str, int], name: str) -> int | None:
    """Return what a size is, which may be a number itself: 2, of what is even."""
    return int(name) if name.isdecimal() else sizes.get(name)


NOTHING = Declarations()


def name_item(name: str, key: object) -> str:
    """Return what the value of a dictionary is called: ``batch['labels']``."""
    return f"{name}[{key!r}]"


@lru_cache(maxsize=16)
def read_declarations(text: str, qualname: str, assumed: tuple[str, ...] = ()) -> Declarations:
    """Return what a module says of the arguments of one of its functions.

    ``assumed`` is what the user says, beside comments: it goes before what the text says.

    Raises:
        AssumptionError: a comment is spelt wrong.

    """
    try:
        tree = parse_once(text)
    except (SyntaxError, ValueError):
        return Declarations()
    function = find_function(tree, qualname)
    if function is None:
        return Declarations()
    names = [arg.arg for arg in list_arguments(function)]
    init = find_init(tree, qualname)
    uses = read_uses(tree, function, qualname, init)
    said = _read_said(text, tree, function, qualname, names)
    found = {n: said.get(n, Declared()) for n in names}
    docstring = ast.get_docstring(function) or ""
    for name, key in ((n, key) for n in names for key in uses[n].keys):
        # each beginning a line: ``dict with "ids" (batch, seq) and "lengths" (batch,)``
        lines = re.sub(r"""["'`]+(\w+)["'`]+""", r"\n\1", docstring)
        others = (n for n in names if n != name)  # ``batch`` is a size as well
        told = read_text(lines, [*uses[name].keys, *others]).get(key)
        if told is not None:
            found[name_item(name, key)] = Declared(told.shapes, told.kinds, below=told.below)
            uses[name_item(name, key)] = Use()
    # Shapes that are said of a dictionary are those of what it holds.
    rising = find_rising(function, docstring)
    found = {n: _complete(one, uses[n], rises=n in rising) for n, one in found.items()}
    x, y = found.get("x"), found.get("y")
    if x and y and x.shapes == y.shapes != () and not y.kinds:  # beside another y: no label
        found["y"] = replace(y, kinds=x.kinds or frozenset({"float"}))
    comments = list_comments(text, function.lineno, function.end_lineno or function.lineno)
    if re.search(_BELOW_ZERO, ast.get_source_segment(text, function) or ""):
        found = {n: replace(one, below="") for n, one in found.items()}
    given = read_default_sizes(init)
    bare = {n for n in names if not found[n].shapes}
    for name, letters in (*list_lettered(function, bare), *bounds.list_tied(function, bare)):
        found[name] = replace(found[name], shapes=(letters,))
    shapes = {name: one.shapes for name, one in found.items()}
    for name, full in read_products(function, docstring, shapes).items():
        found[name] = replace(found[name], shapes=tuple(name_sizes(s, given) for s in full))
    sure = _read_assumed((*comments, *assumed), names)
    found |= {n: replace(one, use=replace(uses[n], dims=set(), least=0)) for n, one in sure.items()}
    apart = {*list_told_apart(function, {n: one.shapes for n, one in found.items()})}
    apart |= {*list_spread(function, bare - sure.keys())}
    known = [shape for one in found.values() for shape in one.shapes]
    multiples = [*read_multiples(docstring, known, names), *list_multiples(function)]
    # ``cos (T, rotary_dim)`` of a function with ``rotary_dim=4`` is four wide
    given |= read_default_sizes(function) | bounds.find_fixed(function)
    own = find_unpacked_settings(function)
    limits = bounds.list_bounds(function, known, rising)
    return Declarations(found, frozenset(sure), given, 1, multiples, own, frozenset(apart), limits)


def _read_assumed(texts: Sequence[str], names: Sequence[str]) -> dict[str, Declared]:
    """Return what is said of these arguments; of other functions' nothing is taken."""
    found: dict[str, Declared] = {}
    for text in texts:
        name, shape, kind = parse_assumption(text)
        if name in names:
            before = found.get(name, Declared())
            found[name] = Declared((*before.shapes, shape), before.kinds | {kind})
    return found


def _complete(said: Declared, use: Use, *, rises: bool) -> Declared:
    # a text that speaks of other dimensions than the code unpacks is out of date
    known = use.dims if not use.tested else set()
    shapes = tuple(s for s in said.shapes if not known or ANY in s or len(s) in known)
    told = replace(said, shapes=shapes, below=said.below or use.below, rises=rises, use=use)
    found = Declared(use=use) if use.keys else told
    if use.kind is not None and not found.kinds:
        found = replace(found, kinds=frozenset({use.kind}))
    return found


def _read_said(
    text: str, tree: ast.Module, function: Function, qualname: str, names: Sequence[str]
) -> dict[str, Declared]:
    texts = [ast.get_docstring(function) or "", read_comments_of_signature(text, function)]
    cls = find_class(tree, qualname)
    if cls is not None and function.name in {"forward", "__call__", "__init__"}:
        texts.append(ast.get_docstring(cls) or "")
    found: dict[str, Said] = {}
    for argument in list_arguments(function):
        if argument.annotation is not None:
            said = read_annotation(ast.unparse(argument.annotation))
            if said.shapes:
                found[argument.arg] = said
    types = read_types(texts[0], names)
    found = {**{name: read_annotation(kind) for name, kind in types.items()}, **found}
    optional = list_defaults(function.args)
    plain = spell_annotations(list_arguments(function))
    tensors = [n for n, kind in plain.items() if "Tensor" in kind and n not in {"self", *optional}]
    for name, said in _read_texts(texts, names, tensors):
        before = found.get(name, Said())
        found[name] = Said(
            before.shapes or said.shapes,
            before.kinds or said.kinds,
            before.below or said.below,
            before.narrow or said.narrow,
            before.boxes or said.boxes,
        )
    for other in list_siblings(tree, function, qualname):
        told = read_text(other.text, other.arguments)
        for name, theirs in other.names.items():
            before = found.get(name, Said())
            if theirs in told and not (before.shapes or before.kinds):
                found[name] = told[theirs]
    promises = read_promises("\n".join(texts), names)
    positive = read_from_one("\n".join(texts), names)
    return {
        n: Declared(
            list_meant(said.shapes, plain.get(n, "")),
            # of 0 and 1, a ``LongTensor`` holds numbers, and no flags
            said.kinds | ({"int"} if _LONG in plain.get(n, "") and said.kinds == _FLAGS else set()),
            promise=promises.get(n),
            below=said.below or positive.get(n, ""),
            least=int(n in positive),
            narrow=getattr(torch, said.narrow) if said.narrow else None,
            boxes=said.boxes,
            type=types.get(n, ""),
        )
        for n, said in found.items()
    }


def _read_texts(
    texts: Sequence[str], names: Sequence[str], tensors: Sequence[str]
) -> Iterator[tuple[str, Said]]:
    """Yield what texts say of arguments, then what their examples show."""
    for one in texts:
        told = read_text(one, names, tensors[0] if len(tensors) == 1 else "")
        every = dict.fromkeys(tensors, told.pop(EVERY)) if EVERY in told else {}
        yield from told.items()
        yield from every.items()
    for name, kind in read_shown("\n".join(texts), names):
        yield name, Said(kinds=frozenset({kind}))
