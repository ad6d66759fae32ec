"""Shapes as people write them: ``q (B, H, T, D)``, ``Float[Tensor, "b t d"]``, ``[batch, seq]``."""

from __future__ import annotations

import ast
import itertools
import keyword
import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

Shape: TypeAlias = tuple[str, ...]
"""Sizes as written: a name, a number, ``2*d``, or ``...`` for any number of them."""
_Entry: TypeAlias = tuple[list[str], str, list[Shape]]
"""Arguments, what is said of them, and shapes."""
DeclaredKind: TypeAlias = Literal["float", "int", "bool", "complex", "additive", "zero-one"]
ANY = "..."
_ANY_TENSOR = "AnyTensor"
"""Stands for the annotation of an argument that has none."""
_NUMBERS = ("int", "float", "bool")
_POWERS = (2, 3)
"""What sides are raised to: ``patch_size**2``."""
_SIZE = r"(?:\.\.\.|\*\w*|\w+'?(?:\s*(?://|\*\*|[*+/-])\s*\w+)*)"
_GROUP = re.compile(rf"[(\[]\s*({_SIZE}(?:\s*(?:,|\bx\b|\u00d7)\s*{_SIZE})*)\s*,?\s*[)\]]")
_FIRST = re.compile(r"[\s*-]*`*\w+`*\s*:\s*(?:optional\s+)?\[")
_BARE = re.compile(r"(?<![\w(\[.])[A-Z]\d?(?:x(?:[A-Z]\d?|\d+))+\b")
"""A shape without brackets: ``Nx4``, ``BxCxHxW``."""
_QUOTED = re.compile(r"(?i)(?:shape|size)s?[ :]*[(\[][`\w, ]+[)\]]")  # ``(`n`, `m`)``, no types
_NO_SIZES = re.compile(
    r"(?i)^(optional|tensor|float\d*|int\d*|bool|default|long|none|str|list|tuple|or|true|false|dict"
    r"|module|callable|n?d?array|0|required)$"
)
_NO_SHAPE_BEFORE = re.compile(
    r"(?i)(\bin|range|between|within|betas?|from|values)\s*[:=]?\s*$|(?<!Tensor)(?<=[\w\]])$"
)
_OF_NAMED = re.compile(r"[\s`:]*[\s:][\s`]*(?=.*[A-Za-z]).*", re.DOTALL)  # and nothing between
_RETURNED = re.compile(r"(?i)\breturn|\byield|\boutputs?:|->|→")
_MADE_OF = re.compile(r"\w[ \t]+`*$")
_AS = re.compile(r"^[ \t`]*(?:as|to|into|in)\b.*", re.DOTALL)
"""``Rows of x (N, D) as int8`` are what is made of x."""
_CHANGES = re.compile(r"(?i)[\s`'\"]*(?:to|into|->|=>|→|becomes?)[\s`'\"]*(?:shape[\s:`]*)?")
_OTHER_PART = re.compile(
    r"(?im)^[ \t]*(:?returns?|:?rtype|yields?|:?raises|outputs?|examples?|notes?|references)\b"
)
_SUMMARY = re.compile(r"(?i)(returns?|yields?)[ \t]+[\w`]")
"""A sentence, not a section: ``Return the means of x (N, D).``"""
_OTHER_SECTION = re.compile(
    r"(?ims)^[ \t]*(returns?|yields?|raises|outputs?|examples?|notes?|references)[ \t]*:?[ \t]*$"
    r".*?(?=^[ \t]*(?:args|arguments|parameters|inputs?|shapes?)[ \t]*:?[ \t]*$|\Z)"
)
_ITEM = re.compile(r"(?m)^[ \t]*\w+ \([^()\n]*\b(int|float|bool|str|list|Module)\b[^()\n]*\):")
_JOINED = re.compile(r"(?:\s*(?:,|/|&|\band\b|\bor\b)\s*)+")
_HEADER = (
    r"^[ \t]*(?:[-*#][ \t]*|:param[ \t]+(?:[\w.\[\]]+[ \t]+)?|@param[ \t]+)?({names})[ \t]*"
    r"(?=[:(\[=,\u2014-]|of |has |is |with |$)"
)
_JAXTYPED = re.compile(
    r"\b(Float|Int|UInt|Integer|Bool|Complex|Shaped|Num|Inexact|Real|Key|Long"
    r"|(?:B?Float|U?Int)\d+)\[[^'\"]*['\"]([^'\"]*)['\"]\]"
)
_KINDS: tuple[tuple[str, DeclaredKind], ...] = (
    (r"(?i)\badditive\b|-inf\b|added to (the )?(scores|logits|attention)", "additive"),
    # Not the intervals ``in (0, 1)`` and ``between 0 and 1``.
    (
        r"(?i)(?<![(\[])(?<!between )\b0 ?(/|or|and|,) ?1\b|\bzeros? (and|or) ones?\b|\{0, ?1\}",
        "zero-one",
    ),
    (r"(?i)\bbool(ean|tensor)?\b", "bool"),
    (
        r"(?i)\b(long|u?int\d+|bytes?|integers?|longtensor|indices|indexes|ids|class numbers?)\b",
        "int",
    ),
    (r"^\w*:? +(of +)?ints?\b", "int"),
    (r"(?i)\bfloat(ing)?\b|\b[01]\.0\b", "float"),
    (r"(?i)\bcomplex(64|128)?\b", "complex"),
)
_CONTINUOUS = r"(?i)tensor\b[^.;]{0,60}\b(predictions?|regression|logits|probabilit(y|ies))\b"
_PLURAL = re.compile(
    r"(?i)[\s`]*\w+[\s`]*, *(?:all |both )?(?:\w+ )?"
    r"(?:masks|booleans|bools|integers|floats|labels|class numbers|indices|ids)\b"
)
_BELOW = re.compile(
    r"(?i)\b(?:below|less than|smaller than) (\w+)|< *(\w+)\b(?! *<)"
    r"|[\[{(]0, *(?:\.\.\.?,? *)?(\w+)(?:\)| *- *1[\])}])"
    r"|\b0 *(?:to|\.\.\.?|-) *(\w+) *- *1\b"
)
_AT_MOST = re.compile(r"(?i)(?:\b(?:at most|no more than)|<=) *(\w+)\b(?! *<)")
_MULTIPLE = re.compile(
    r"(?i)\b(\w+(?:(?: *, *| and | & |/)\w+)*)(?: (?:is|are|both|must be|each))*(?: an?)?"
    r" (?:multiples? of|divisible by) (\w+)|(\w+) *% *(\w+) *={1,2} *0\b"
)
_EVEN = re.compile(
    r"(?i)\b(\w+(?:(?: *, *| and | & |/)\w+)*)"
    r" (?:(?:(?:are|is|both|each|always|must be|all) )+even\b|even(?=[,.;:)]|$))"
    r"|\beven (\w+(?:(?: *, *| and | & |/)\w+)*)"
)
_SIDES = re.compile(r"(?i)(?:spatial )?(?:sizes?|sides?|resolution|dimensions)")
"""What texts call the last two sizes of an image."""
EVERY = "*"
"""Stands for the names of all tensors: ``All (B, T); mask of 0 and 1``."""
_ALL = re.compile(
    r"(?i)\b(all|both|each)( (tensors?|inputs?|arguments?|are|have|is|has|of|the|a|shaped?))*:? *$"
)
_OF_KIND = re.compile(r"(?i)\s+(?:is|are)\s+(?:[01]|zeros?|bool|int|long|float)")
_SCALAR = re.compile(
    r"(?i)[\w\s`,/&()-]*?(?::|\(|\bis\b|\bare\b)\s*(?:an? |the )?(?:(?!python)\w+ )?"
    r"(?:scalars?\b(?! *(?:or|/|and)\b)|0-?d(?:im\w*)?\b|zero-dimensional\b)"
)
_CLAUSE = 5  # words that say of an argument what its numbers are
_BOUND_BEFORE = re.compile(r"(?i)(\bbelow|\bthan|\bmost|<=?|\b0 *(,|to|\.\.\.?|-)) *$")
_LATER = re.compile(rf"(?:[\s`,:]*{_GROUP.pattern})*[\s`,:]*\bor\b")
_BETWEEN = re.compile(r"[\s`,:]*(?:or[\s`:]*)?")
"""What stands between one shape and the next, where both are of one argument."""
_HIDING = r"(?i)\binf\b|lowest|large negative|\bmin\b|finfo|-?1e\d|-1?0000|hidden|mask(s|ed) out"
"""What says that all that is added is 0, or so low that it hides."""


@dataclass(frozen=True, slots=True)
class Said:
    """What is said of one argument."""

    shapes: tuple[Shape, ...] = ()
    """Alternatives; empty: nothing is said."""
    kinds: frozenset[DeclaredKind] = frozenset()
    below: str = ""
    """A size that its whole numbers are less than: a name, a number, ``n + 1``."""
    narrow: str = ""
    """The type of whole numbers that are not int64: ``uint8``."""
    boxes: bool = False
    """Whether it holds corners."""


def read_annotation(text: str) -> Said:
    """Return what an annotation of jaxtyping says."""
    found = _JAXTYPED.search(text)
    if found is None:
        return Said()
    word, shape = found.groups()
    sizes = (size.partition("=")[2] or size for size in shape.split())
    names = tuple(ANY if s == ANY or s.startswith("*") else s.lstrip("#?") for s in sizes)
    plain = tuple(f"_{n}" if name == "_" else name for n, name in enumerate(names))
    return Said((plain,), _kinds_of_word(word))


def _kinds_of_word(word: str) -> frozenset[DeclaredKind]:
    lower = word.lower()
    if lower in {"bool", "complex"}:
        return frozenset({lower})  # type: ignore[arg-type] # a kind
    if "int" in lower or lower == "long":
        return frozenset({"int"})
    return frozenset({"float"}) if "float" in lower or lower in {"inexact", "real"} else frozenset()


def spell_annotations(arguments: Iterable[ast.arg]) -> dict[str, str]:
    """Return the annotations of arguments; of one that has none, that it may be any tensor."""
    return {a.arg: ast.unparse(a.annotation or ast.Name(_ANY_TENSOR)) for a in arguments}


def list_meant(shapes: tuple[Shape, ...], annotation: str) -> tuple[Shape, ...]:
    """Return the shapes that an argument may have: of a number none.

    A ``scalar`` is a tensor without dimensions only where the annotation says that it is one.
    """
    number = annotation in _NUMBERS or not (any(shapes) or re.search(r"\bTensor\b", annotation))
    return () if number else shapes


def read_text(text: str, names: Sequence[str], alone: str = "") -> dict[str, Said]:
    """Return what a docstring or a comment says of the arguments of these names.

    ``alone``: the one that is a tensor, if there is one: what changes its shape may not name it.
    """
    shapes: dict[str, list[Shape]] = {}
    kinds: dict[str, set[DeclaredKind]] = {}
    below: dict[str, str] = {}
    narrow: dict[str, set[str]] = {}
    boxes: set[str] = set()
    for subjects, words, found in _with_shared(_entries(text, names), names):
        for name in subjects:
            scalar = not found and _SCALAR.match(words) is not None
            shapes.setdefault(name, []).extend([()] if scalar else found)
            said = {kind for pattern, kind in _KINDS if re.search(pattern, words)}
            floats = "mask" not in f"{name} {words}" and re.search(_CONTINUOUS, words)
            said |= {"float"} if floats and not said else set()
            if found and all(s[-1] == "2" for s in found):  # real and imaginary, side by side
                said.discard("complex")
            if "additive" in said and not re.search(_HIDING, words):
                said.add("float")  # a bias by distance is added as well
            kinds.setdefault(name, set()).update(said)
            narrow.setdefault(name, set()).update(re.findall(r"\bu?int(?:8|16|32)\b", words))
            boxes |= {name} if re.search(r"(?i)\bboxes\b", words) else set()
            bound, most = _BELOW.search(words), _AT_MOST.search(words)
            if bound is not None:
                below[name] = next(filter(None, bound.groups()))
            elif most is not None:
                below[name] = f"{most.group(1)} + 1"
            elif "zero-one" in said:
                below[name] = "2"
    if alone and not shapes.get(alone) and (change := _read_change(text)) is not None:
        shapes[alone], kinds[alone] = [change], kinds.get(alone, set())
    return {
        n: Said(
            tuple(dict.fromkeys(s)),
            frozenset(kinds[n]),
            below.get(n, ""),
            # one type alone: of ``bool or uint8``, a mask is either
            next(iter(narrow[n])) if kinds[n] == {"int"} and len(narrow[n]) == 1 else "",
            n in boxes,
        )
        for n, s in shapes.items()
    }


def _with_shared(entries: Iterable[_Entry], names: Sequence[str]) -> Iterator[_Entry]:
    """Yield what is said of several arguments for each: ``a (N, H), b (M, H), boolean masks``."""
    silent: list[str] = []
    for subjects, words, found in entries:
        yield subjects, words, found
        if silent and _PLURAL.match(words):
            yield silent, words, []
        says = set(re.findall(r"\w+", words)) - set(names)
        silent = [] if says or not found else [*silent, *subjects]


def read_multiples(
    text: str, shapes: Sequence[Shape] = (), numbers: Collection[str] = ()
) -> list[tuple[str, str]]:
    """Return the sizes that a text says to be multiples of others: ``C a multiple of groups``.

    Or of two: ``x (B, C, H, W), H and W are even``, ``even height and width``, ``even sizes``.
    ``shapes``: those that the same text gives; ``numbers`` are arguments that have none.
    """
    cut = ((many or one, by or part) for many, by, one, part in _MULTIPLE.findall(text))
    found = [(name, by) for names, by in cut for name in re.split(r" *, *| and | & |/", names)]
    named = dict.fromkeys(size for shape in shapes for size in shape if size.isidentifier())
    for words in (one or other for one, other in _EVEN.findall(text)):
        if _SIDES.fullmatch(words):
            images = [shape[-2:] for shape in shapes if len(shape) > 2]  # noqa: PLR2004 - beside rows
            found += [(size, "2") for image in images for size in image if size in named]
            continue
        for word in re.findall(r"\w+", words):
            initial = word[0].upper() if word.lower() in {"height", "width", "time"} else word
            size = word if word in named else initial
            size = word if word in numbers else size
            found += [(size, "2")] if size in named or size in numbers else []
    return list(dict.fromkeys(found))


def _entries(text: str, names: Sequence[str]) -> Iterator[_Entry]:
    """Yield the arguments that a part of a text is about, its words, and the shapes in it."""
    if not text.strip():
        return
    text = _OTHER_SECTION.sub("", text.replace("\\_", "_"))  # as in formulas
    text = _QUOTED.sub(lambda found: found[0].replace("`", ""), text)
    text = _BARE.sub(lambda found: f"({', '.join(found[0].split('x'))})", text)
    one = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    if not one:
        return
    several = rf"(?:{one})(?:(?:[ \t]*(?:,|/|&|\band\b)[ \t]*)+(?:{one})\b)*"
    header = re.compile(_HEADER.format(names=several + r"\b"), re.MULTILINE)
    inside = re.compile(rf"(?<![\w.]){several}(?![\w.])")
    others = {m.start() for m in _OTHER_PART.finditer(text)}
    starts = sorted({m.start() for p in (header, _ITEM) for m in p.finditer(text)} | others)
    for begin, end in zip([0, *starts], [*starts, len(text)], strict=True):
        part = text[begin:end]
        if begin in others:
            if not begin and _SUMMARY.match(part):
                yield from _shapes_in(part, "", inside, names, beside=True)
            continue
        heading = header.match(part) if begin in starts else None
        subject = heading.group(1) if heading else ""
        yield from _shapes_in(part, subject, inside, names)


def _shapes_in(
    part: str,
    subject: str,
    inside: re.Pattern[str],
    names: Sequence[str],
    *,
    beside: bool = False,
) -> Iterator[_Entry]:
    """Yield what a part says of arguments; ``beside``: where a shape stands right beside a name."""
    known = [n for n in _JOINED.split(subject) if n]
    at = len(subject)
    told = False
    for group in _GROUP.finditer(part):
        before = part[at : group.start()]
        alone = "," not in group[0] and not _FIRST.fullmatch(part[: group.start() + 1])
        shape = _shape(group[1], alone=alone)
        mentions = list(inside.finditer(before))
        between = before[mentions[-1].end() :] if mentions else "-"
        own = _OF_NAMED.fullmatch(between + group.group(1)) is not None
        no_shape = _not_a_shape(before, known, own=own)
        no_shape |= beside and between.strip(" `:") != ""
        if shape is None or set(shape) <= set(names) or no_shape:
            continue
        named = [m[0] for m in mentions]
        words = before[mentions[-1].start() :] if mentions else before
        said = _RETURNED.search(before.rpartition(named[-1])[2] if named else before)
        # ``mask: which x to keep (B, T)`` is about the mask; ``x (B, T), y (B, S)`` about y.
        if named and (told or not known):
            known = [n for n in _JOINED.split(named[-1]) if n]
        elif told and not re.search(r"(?i)\bor\b", before):
            # ``(freq, time)``, ``(channel, freq, time)`` or ``(batch, channel, freq, time)``
            several = len(known) == 1 and _BETWEEN.fullmatch(before)
            known = known if several and _LATER.match(part[group.end() :]) else []
        known = known or [EVERY] * (not named and _ALL.search(before) is not None)
        at, told = group.end(), True
        if known and not said:
            after = part[group.end() :]  # up to the next shape, which ``[0, n)`` is not
            shapes = (g.start() for g in _GROUP.finditer(after) if not _BELOW.match(g[0]))
            rest = after[: next(shapes, None)].partition(";")[0].partition("\n\n")[0]
            found_in = inside.finditer(rest)  # ``i (T,) below n`` is still about i
            others = (m for m in found_in if not _BOUND_BEFORE.search(rest[: m.start()]))
            other = next(others, None)
            rest = _RETURNED.split(rest[: other.start()] if other else rest)[0]
            made = mentions and _MADE_OF.search(before[: mentions[-1].start()])
            rest = _AS.sub("", rest) if made else rest
            yield known, f"{words} {rest.partition(chr(10))[0]}", [shape]
        elif said:
            return
    # ``x, y (B, T); y 0 or 1`` says more of y; a whole sentence may be about anything.
    for clause in re.split(r"[;.]\s+|\n\s*", part[at:])[1:] if told else ():
        more = inside.match(clause)
        says = more and (_OF_KIND.match(clause, more.end()) or _SCALAR.match(clause))
        if more and len(clause.split()) <= (_CLAUSE if not says else 2 * _CLAUSE):
            yield [n for n in _JOINED.split(more.group(0)) if n], clause, []
    if not told and known:
        yield known, part.partition("\n\n")[0], []


def _not_a_shape(before: str, known: Sequence[str], *, own: bool) -> bool:
    """Say whether what stands before a bracket makes it something else: a range, a call.

    ``values (T + 1, N)``, where an argument has that name, is no list of values: ``own``.
    """
    if own or (not before and known):
        return False
    return _NO_SHAPE_BEFORE.search(before) is not None


def _shape(text: str, *, alone: bool) -> Shape | None:
    sizes = tuple(s.strip() for s in re.split(r",|\bx\b|\u00d7", text))
    if any(_NO_SIZES.match(size) for size in sizes):
        return None
    if len(sizes) == 1 and alone and not re.fullmatch(r"[A-Z]\w?|\w*_\w+|[a-z]", sizes[0]):
        return None  # a remark in brackets
    return tuple(ANY if size == ANY or size.startswith("*") else size for size in sizes)


@lru_cache(1 << 12)  # of each call that is tried, the same ones
def read_sizes(sizes: Shape) -> tuple[ast.expr, ...] | None:
    """Return sizes as expressions; None if one of them is none."""
    whole = (re.sub(r"(?<!/)/(?!/)", "//", s.replace("'", "_")) for s in sizes)
    times = (re.sub(r"\b(\d+)(?=[A-Za-z_])", r"\1*", s) for s in whole)  # ``(T, 2T - 1)``
    # ``in_`` for the ``in`` of ``(out, in)``
    plain = (re.sub(rf"\b({'|'.join(keyword.kwlist)})\b", r"\1_", s) for s in times)
    try:
        return tuple(ast.parse(size, mode="eval").body for size in plain)
    except SyntaxError:
        return None


def evaluate_size(size: ast.expr, known: Mapping[str, int]) -> int | None:
    """Return what a size comes to; None if a name in it has no size yet."""
    if isinstance(size, ast.Constant) and type(size.value) is int:
        return size.value
    if isinstance(size, ast.Name):
        return known.get(size.id)
    if not isinstance(size, ast.BinOp):
        return None
    left, right = evaluate_size(size.left, known), evaluate_size(size.right, known)
    if left is None or right is None:
        return None
    if isinstance(size.op, ast.FloorDiv):
        return left // right if right else None
    ways = {ast.Mult: int.__mul__, ast.Add: int.__add__, ast.Sub: int.__sub__}
    if right in _POWERS:
        ways[ast.Pow] = int.__pow__
    return ways[type(size.op)](left, right) if type(size.op) in ways else None


def _read_change(text: str) -> Shape | None:
    """Return what a text says to change: ``(batch, heads, length, dim) to (batch, length, ...)``.

    It has no name before it, for there is one tensor alone.
    """
    plain = _OTHER_SECTION.sub("", text.replace("\\_", "_"))
    groups = list(_GROUP.finditer(plain))
    for first, second in itertools.pairwise(groups):
        between = plain[first.end() : second.start()]
        if _CHANGES.fullmatch(between) and "," in first.group(1):
            return _shape(first.group(1), alone=False)
    return None


_Equation: TypeAlias = tuple[ast.expr, int]
"""A size and what it comes to."""


def unify(
    shaped: Sequence[tuple[tuple[Shape, ...], tuple[int, ...]]],
    known: Mapping[str, int],
    left: tuple[_Equation, ...] = (),
) -> Iterator[Mapping[str, int]]:
    """Yield sizes for the names in shapes under which each tensor has one of its shapes.

    ``left`` are sizes that are computed of others.
    """
    if not shaped:
        solved = _solve(left, known)
        if solved is not None:
            yield solved
        return
    (alternatives, sizes), *rest = shaped
    for shape in alternatives:
        bound = _bind(shape, sizes, known)
        if bound is not None:
            yield from unify(rest, bound[0], (*left, *bound[1]))


def _bind(
    shape: Shape, sizes: tuple[int, ...], known: Mapping[str, int]
) -> tuple[Mapping[str, int], list[_Equation]] | None:
    if ANY in shape:
        at = shape.index(ANY)
        more = len(sizes) - len(shape) + 1
        if more < 0:
            return None
        shape, sizes = (*shape[:at], *shape[at + 1 :]), (*sizes[:at], *sizes[at + more :])
    if len(shape) != len(sizes):
        return None
    bound = dict(known)
    left: list[_Equation] = []
    parsed = read_sizes(shape)
    for expression, size in zip(parsed or (), sizes, strict=parsed is not None):
        if isinstance(expression, ast.Name):
            if bound.setdefault(expression.id, size) != size:
                return None
        else:
            left.append((expression, size))
    return bound, left


def _solve(left: Sequence[_Equation], known: Mapping[str, int]) -> Mapping[str, int] | None:
    """Return what is known with what products are: V of ``beam * V``; None if one does not hold."""
    bound = dict(known)
    for product, size in [*left] * len(left):  # each may tell a name of another
        value = evaluate_size(product, bound)
        if value is not None and value != size:
            return None
        if value is None and isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult):
            first, second = product.left, product.right
            for name, factor in ((first, second), (second, first)):
                part = evaluate_size(factor, bound)
                if part and isinstance(name, ast.Name):
                    bound[name.id], rest = divmod(size, part)
                    if rest:
                        return None
    return bound
