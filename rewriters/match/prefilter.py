"""Which rules a text may concern, going by its words alone: reading it costs much more."""

from __future__ import annotations

import re
from functools import cache, lru_cache, reduce
from operator import and_
from typing import TYPE_CHECKING

from npufix.rewriters.graph import operators
from npufix.rewriters.graph.special import Op
from npufix.rewriters.graph.submodules import FUNCTIONS
from npufix.rewriters.match.features import FEATURES, FROM_THE_END, feature_of
from npufix.rewriters.match.matching import pattern_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from npufix.rewriters.graph.nodes import Node
    from npufix.rules.substitution import Substitution

# Names, numbers, three dots and runs of operators. ``*args``, ``**kwargs``, ``->``, ``dim=-1``,
# ``sum(-1)`` and ``x[-1]`` compute nothing; what ``self.layer_norm`` is, its class says.
_WORD = re.compile(
    r"[^\Wsda]\w*|self\.\w+|super\s*\(\s*\)(?=\s*\.\s*forward\b)"
    r"|\.\.\.|\*\*?\w*(?:args|kwargs)\b|->|/ ?2\b|\b(?:dim|axis) ?= ?-(?=\d)"
    r"|(?<=[\[(,:=]) ?-\d+[\]),:]|\w+|[-+*/@<>=]+"
)
# What has to stand somewhere for an operation, where that is not its name: a regular expression
# for a whole word.
_SPELLINGS = {
    "arange": r"arange",
    "activation": r"\w*(ACT\w*|[Aa]ct(ivation)?s?(_fns?|_func(tion)?|_layer)?\d?)",
    "add": r"[^+]*\+.*|_*add_*|addcmul",
    "augment": r"[-+*/]=",
    "cast": "|".join(rf"_*{name}_*" for name in ("to", "type", "type_as", *operators.CASTS)),
    "cat": r"cat|concat|concatenate|rearrange",
    "chunk": r"\w*chunk|\w*split|unbind|rearrange|[^/]*//.*|/ ?2",
    "clamp": r"_*(clip|clamp(_min|_max)?)_*",
    "div": r"[^/]*/.*|div|div_|divide|true_divide",
    "dropout": r"\w*ropout\w*",
    "einsum": r"einsum",
    "full": r"full",
    "ge": r"[<>]=?|ge|le",
    "gt": r"[<>]=?|gt|lt",
    "item": "",
    "le": r"[<>]=?|ge|le",
    "linear": r"\w*[lL]inear\w*",
    "lt": r"[<>]=?|gt|lt",
    "matmul": r"@=?|matmul|mm",
    "mean": r"_*mean_*|sum",
    "mul": r"[^*]*\*|\*=|[^/]*/.*|addcmul|mul|mul_|multiply|div|div_|divide|true_divide",
    "neg": r"[^-\w]*-[^>\w]*|neg|neg_|negative",
    "ones": r"ones",
    "rsqrt": r"[^*]*\*\*\W*|\w*sqrt_?|pow_?",
    "sigmoid": r"\w*igmoid\w*",
    "sqrt": r"[^*]*\*\*\W*|\w*sqrt_?|pow_?",
    "stack": r"stack|rearrange",
    "square": r"[^*]*\*\W*|pow_?|square_?|mul_?|multiply",
    "sub": r"[^-\w]*-[^>\w]*|sub|sub_|subtract",
    "zeros": r"zeros",
    FROM_THE_END: r"\.\.\.",
}
_FORWARD_OF_BASE = r"super\s*\(\s*\)"
"""``super().forward(x)`` of a LayerNorm; in nearly every ``__init__`` stands ``super`` alone."""
# Operations that can be written in too many ways to look for any of them.
_ANYHOW = frozenset(
    {
        "abs", "and", "eq", "float", "int", "long", "maximum", "minimum", "ne",
        "nonzero", "or", "pow", "reciprocal", "round", "size", "squeeze", "t", "transpose", "type",
        "unsqueeze", "view", "expand", "flatten", "dim", "max", "min", "all", "any",
    }
)  # fmt: skip
# More ways to write a pattern than these are judged by what they have in common.
_MOST_ALTERNATIVES = 16
_MODULES = {op: module for module, op in FUNCTIONS.items() if op}


class Words:
    """The words that some rules look for, one bit each; a text is the bits of its words."""

    def __init__(self, rules: Sequence[Substitution]) -> None:
        rules = _with_patterns(rules)
        ops = sorted({op for rule in rules for way in _ways(rule) for op in way})
        self._groups = {op: (1 << n, re.compile(words_of(op))) for n, op in enumerate(ops)}
        self._needed = {
            rule.id: tuple(sum(self._groups[op][0] for op in way) for way in _ways(rule))
            for rule in rules
        }
        self._common = {key: reduce(and_, ways, -1) for key, ways in self._needed.items()}
        """What all ways of a rule need: nearly every rule fails at that."""
        self.of_modules = sum(bit for op, (bit, _) in self._groups.items() if _is_made(op))
        """What a class may have in its ``__init__``, and call by another name elsewhere."""
        self.of_features = sum(bit for op, (bit, _) in self._groups.items() if op in FEATURES)
        self._any = re.compile("|".join(map(words_of, ops)) or "(?!)")
        self._bits: dict[str, int] = {}
        """Those of the words met so far that have any."""
        self._met: set[str] = set()

    def of(self, words: frozenset[str]) -> int:
        """Return the bits of some words."""
        for word in filter(self._any.fullmatch, words - self._met):
            bits = sum(bit for bit, spelled in self._groups.values() if spelled.fullmatch(word))
            self._bits[word] = bits
        self._met |= words
        found = 0
        for word in words & self._bits.keys():
            found |= self._bits[word]
        return found

    def features_of(self, rules: Sequence[Substitution]) -> frozenset[str]:
        """Return the features that some rules ask for."""
        return frozenset(op for rule in rules for way in _ways(rule) for op in way & FEATURES)

    def possible(self, rules: Sequence[Substitution], found: int) -> list[Substitution]:
        """Return the rules whose operations may be there."""
        missing, common = ~found, self._common
        likely = [r for r in rules if not common.get(r.id, -1) & missing]
        return [r for r in likely if any(w & found == w for w in self._needed[r.id])]


@lru_cache(maxsize=4096)
def words_in(text: str) -> frozenset[str]:
    """Return the different words of a text: that of a helper is asked for by every file."""
    return frozenset(_WORD.findall(text))


@lru_cache(maxsize=8)
def words_for(rules: tuple[Substitution, ...]) -> Words:
    """Return the words that some rules look for."""
    return Words(rules)


def _with_patterns(rules: Iterable[Substitution]) -> list[Substitution]:
    return [rule for rule in rules if not rule.search]


def list_ways(rules: Iterable[Substitution]) -> list[list[list[str]]]:
    """Return what the patterns of some rules need, to be kept: all of them are read for it."""
    return [[sorted(way) for way in _ways(rule)] for rule in _with_patterns(rules)]


def learn_ways(rules: Sequence[Substitution], kept: Sequence[Sequence[Sequence[str]]]) -> None:
    """Take what ``list_ways`` has returned for the same rules."""
    for rule, ways in zip(_with_patterns(rules), kept, strict=True):
        _known_ways[rule] = tuple(map(frozenset, ways))


_known_ways: dict[Substitution, tuple[frozenset[str], ...]] = {}


def _ways(rule: Substitution) -> tuple[frozenset[str], ...]:
    """Return, for each spelling of a pattern, the operations that must be found somehow."""
    if rule not in _known_ways:
        roots = (pattern_of(form.pattern).root for form in rule.forms)
        ways = (way for root in roots for way in _alternatives(root, {}))
        _known_ways[rule] = tuple(sorted(_fewest(ways), key=sorted))
    return _known_ways[rule]


def _alternatives(
    node: Node, known: dict[Node, frozenset[frozenset[str]]]
) -> frozenset[frozenset[str]]:
    """Return the operations of a node and its operands, one set for each way to spell it."""
    if node in known:
        return known[node]
    found: set[frozenset[str]]
    if node.op == Op.EITHER:
        found = set().union(*(_alternatives(arg, known) for arg in node.args))
    else:
        needed = {node.op, feature_of(node)}
        found = {frozenset(op for op in needed if op and words_of(op))}
        for arg in node.args:
            ways = _alternatives(arg, known)
            found = {left | right for left in found for right in ways}
            if len(ways) > 1:
                found = set(_fewest(found))
            if len(found) > _MOST_ALTERNATIVES:
                found = {frozenset.intersection(*found)}
    known[node] = frozenset(found)
    return known[node]


def _fewest(ways: Iterable[frozenset[str]]) -> list[frozenset[str]]:
    """Return the ways without those that ask for all that another one asks for, and more."""
    ways = set(ways)
    return [one for one in ways if not any(other < one for other in ways)]


@cache
def words_of(op: str) -> str:
    """Return what a word looks like that stands wherever an operation does, "" if none must."""
    if op in _SPELLINGS:
        return _SPELLINGS[op]
    if op in FEATURES or op in _ANYHOW:
        return re.escape(op) if op in FEATURES else ""
    if op.startswith("module:"):
        return rf"\w*{re.escape(op.removeprefix('module:').partition(' ')[0])}\w*"
    if "." in op:
        return re.escape(op.rpartition(".")[2])
    name = op.rstrip("_")
    if name not in operators.TABLE or name in operators.SYMBOLS:
        return ""
    names = [name, *operators.other_names(name), *filter(None, [_MODULES.get(name)])]
    spelled = [rf"_*{re.escape(known)}_*" for known in names]
    spelled += [_FORWARD_OF_BASE] if name == "layer_norm" else []
    return "|".join(spelled)


def _is_made(op: str) -> bool:
    return op.startswith("module:") or op in {Op.ACTIVATION, "dropout", *FUNCTIONS.values()}
