"""Which differences a caller can see: the others are said, and refute nothing."""

from __future__ import annotations

import ast
import re
from enum import Enum
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.edit.edit import segment
from npufix.rewriters.graph.modules.names import source_lines
from npufix.rewriters.graph.modules.syntax import parse_once, walk
from npufix.rewriters.verification.calls.values import (
    Kind,
    Tensor,
    Value,
    list_dimensions,
    list_kinds,
    list_tensors,
)
from npufix.rewriters.verification.inputs.arguments import INTEGER_TENSOR, MASK
from npufix.rewriters.verification.inputs.objects.offers import has_no_weights
from npufix.rewriters.verification.inputs.source.attributes import sees_order
from npufix.rewriters.verification.inputs.source.declarations import read_declarations
from npufix.rewriters.verification.inputs.source.slicing import find_changed
from npufix.rewriters.verification.judge.difference import Seen
from npufix.rewriters.verification.judge.halves import (
    cuts_in_two,
    find_met_by_chance,
    find_reached,
    halves_a_width,
    has_no_width,
    is_for_odd,
    is_odd,
    makes_nothing_of_one,
    makes_nothing_of_zero,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.calls.values import Spec
    from npufix.rewriters.verification.inputs.source.declarations import Declarations
    from npufix.rewriters.verification.judge.difference import Difference
    from npufix.rewriters.verification.judge.observe_case import CaseRun

_TREATS = (
    r"isnan|isinf|isfinite|isposinf|isneginf|nan_to_num|nan(sum|mean|median|quantile)"
    r"|equal_nan|errstate"
)
_HIDES = r"\bclamp|\bclip\("
_SELECTS = frozenset({"masked_fill", "masked_fill_", "masked_scatter", "masked_scatter_"})
_MEMORY = r"^memory of (result.*)$"
_OUTSIDE = r"(?i)index\w* .*out of (range|bounds)|out of bounds|smaller than num_classes"
_AMBIGUOUS = r"dimension size -1 can be any value\b|greater than actual input size"
_OF_NOTHING = (
    r"non-positive groups|primitive descriptor|returned an invalid gradient"
    r"|0 (dim )?batch size|non-zero (size|dimensions) for|non-empty \d-?D"
)
"""How convolutions, pools and ``fold`` refuse no channels or positions; and gradients no rows."""
_ASKS_EMPTY = (
    r"numel\(\)|\bempty\b|len\(\w+\) *== *0|not len\(|(shape|size)[\[(]-?\d+[\])] *[=>]=? *0"
)
"""What code says that is written for tensors of no elements too."""
_WANTS_ONE = (
    r"raises RuntimeError: .*"
    r"(same dtype|expect.* (scalar type|dtype \S+ for)|dtypes? .*(must|to be|match)"
    r"|types? .*should be the same|Found dtype \w+ but expected|can't be cast to)"
)
WRITES_INTO_LEAF = "leaf Variable that requires grad"
_ASKS_DTYPE = (
    r"\bdtype\b(?! *= *(torch\.(long|int|short|uint8|int\d+|bool)|bool|int)\b)"
    r"|\.to\((?! *(device *= *)?[\w.]*device *\))|\.float\(|\.half\(|\.bfloat16\(|\.double\("
    r"|type_as|autocast"
)
"""What code says that is written for floats of several dtypes."""
_MADE_ALIKE = re.compile(
    r"(\b(?:zeros|ones|full|empty|arange|eye|linspace)\((?:[^()]|\([^()]*\))*?)"
    r", *dtype *= *\w+\.dtype\b"
)
"""``torch.zeros(n, dtype=k.dtype)``, which says nothing of others."""
_ASKS_WHOLE = r"u?int\d+\b|\.(long|int|short|byte)\(|is_floating_point|one_hot|bincount|[Ii]nteger"
_TELLS_KINDS = r"\bis_(floating_point|complex)\("
_ROUNDS = re.compile(r"//|%|\b(?:round|trunc|floor|ceil|div|floor_divide|fmod|remainder)\b")
"""What does something else with whole numbers, where it is written."""
_MAY_BE_WHOLE = rf"{INTEGER_TENSOR}|{MASK}|im(a)?ges?$|^img|frames?$|pixel|video|counts?$|^num"
_REFUSED = r"\bthe patched code raises\b"
_EQUATION = r"\beinsum\("
"""What says by its letters which sizes are the same."""
_EITHER = r"targets?$|^y$|^gt"
"""What may be labels, or what a regression is to find."""
_FLOATS: frozenset[Kind] = frozenset({"float", "unit", "box"})
_CHOICES = 2
"""``torch.where`` with fewer further arguments says where, and selects nothing."""


class Purpose(Enum):
    """What code is for, where its arguments hold NaN and Inf."""

    NONE = 0
    HIDES = 1
    """Some of them: ``where(mask, x, 0)`` keeps a NaN out that ``x * mask`` lets through."""
    TREATS = 2
    """It tests for them or replaces them."""


def find_purpose(job: Job) -> Purpose:
    """Say what the code that has changed does about NaN and Inf."""
    lines = job.original.splitlines()
    changed = "\n".join(lines[n - 1] for n in job.lines_original if n <= len(lines))
    text = _text_of(job.original, job.qualname) + changed
    if re.search(_TREATS, text):
        return Purpose.TREATS
    before, after = (
        sum(1 for _ in _selections(text, wanted))
        for text, wanted in ((job.original, job.lines_original), (job.patched, job.lines_patched))
    )
    return Purpose.HIDES if before > after or re.search(_HIDES, text) else Purpose.NONE


def _selections(text: str, lines: Sequence[int]) -> Iterator[ast.AST]:
    """Yield what takes some elements and leaves others out, on these lines."""
    for node in walk(_parse(text)):
        span = range(getattr(node, "lineno", 0), (getattr(node, "end_lineno", 0) or 0) + 1)
        if not any(line in span for line in lines):
            continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name = node.func.attr
            if name in _SELECTS or (name == "where" and len(node.args) >= _CHOICES):
                yield node
        elif isinstance(node, ast.Assign) and any(
            isinstance(t, ast.Subscript) and isinstance(t.slice, ast.Name | ast.Compare | ast.Call)
            for t in node.targets
        ):
            yield node


def set_aside(
    job: Job,
    differences: Sequence[Difference],
    compared: Sequence[CaseRun],
    *,
    so_far: bool = False,
) -> tuple[list[Difference], list[str]]:
    """Return the differences that refute, and the others in words.

    ``so_far``: more calls will be compared, which may say more of these.
    """
    kept: list[Difference] = []
    aside: list[Difference] = []
    every = _Differences(job, differences, compared, so_far=so_far)
    for difference in differences:
        (aside if every.tells_nothing(difference) else kept).append(difference)
    # of ``result[0]`` and ``result[1]`` one tells enough
    first = {
        re.sub(r"\d+", "", d.what): d for d in sorted(aside, key=lambda d: d.rank, reverse=True)
    }
    return kept, [f"{d.text}, for {d.case}" for d in first.values()]


class _Differences:
    """What was found in all calls: each difference is seen in the light of the others.

    What is asked of all calls is computed when it is needed first, for all differences at once.
    """

    def __init__(
        self,
        job: Job,
        differences: Sequence[Difference],
        compared: Sequence[CaseRun],
        *,
        so_far: bool,
    ) -> None:
        self._job, self._compared, self._so_far = job, compared, so_far
        self._cases = {one.label: one for one in compared}
        self._errors = {
            d.case for d in differences if d.seen is Seen.ERROR and d.case in self._cases
        }
        self._same: dict[str, set[str]] = {}
        """The calls in which something differs, by what it is."""
        for d in differences:
            self._same.setdefault(d.what, set()).add(d.case)
        self._refused = {id(d) for d in differences if self._is_loud(d)}
        self._loud = {d.case for d in differences if id(d) in self._refused}

    def tells_nothing(self, difference: Difference) -> bool:
        """Say whether a difference is none that a caller can see."""
        job, cases, name = self._job, self._cases, difference.case
        case, same = cases.get(name), self._same[difference.what]
        error = difference.seen is Seen.ERROR
        return bool(
            (difference.seen is Seen.MEMORY and self._ordinary and not same & self._ordinary)
            or self._is_of_sizes(difference.what, case)
            or id(difference) in self._refused
            or (error and name in self._thin and self._errors <= self._thin < cases.keys())
            or (error and name in self._met_by_chance)
            or (
                error and name in self._of_nothing and self._errors <= self._of_nothing | self._loud
            )
            or (error and name in self._bare and self._errors <= self._bare < cases.keys())
            or (difference.seen is Seen.STRIDES and not _wants_contiguous(job))
            or not sees_order(job.original, job.qualname, difference.what, difference.text)
            or (_is_of_absence(difference) and _is_empty(case))
            or (_is_of_absence(difference) and difference.still and self._flowing - same)
            or (case is not None and self._is_of_whole_numbers(case))
            or (same <= self._void < cases.keys())
            or (
                error
                and name in self._narrow
                and self._errors <= self._narrow | self._loud | self._met_by_chance
                and not re.search(_ASKS_EMPTY, job.original)
            )
            or (not error and same <= self._faint < cases.keys())
            or (same <= self._odd < cases.keys() and self._is_of_halves(case, same))
        )

    def _those(self, has: Callable[[CaseRun], bool]) -> set[str]:
        return {label for label, one in self._cases.items() if has(one)}

    @cached_property
    def _flowing(self) -> set[str]:
        # Of the products of all pairs nothing is left for one field: no gradient, or one of zeros.
        return self._those(lambda one: one.original.flows)

    @cached_property
    def _ordinary(self) -> set[str]:
        return self._those(lambda one: not _has_ones(one))

    @cached_property
    def _thin(self) -> set[str]:
        return self._those(_is_thin)

    @cached_property
    def _bare(self) -> set[str]:
        # Loudly refused: the average over a model that has nothing to average.
        return self._those(lambda one: has_no_weights(one.case.assignment.specs))

    @cached_property
    def _of_nothing(self) -> set[str]:
        return self._those(makes_nothing_of_zero)

    @cached_property
    def _faint(self) -> set[str]:
        # Squares of such rows are no numbers of float16; of bfloat16, of as few digits, they are.
        return self._those(
            lambda one: one.dtype == torch.float16 and one.case.flavour == "tiny rows"
        )

    @cached_property
    def _odd(self) -> set[str]:
        return self._those(is_odd)

    def _is_of_halves(self, case: CaseRun | None, same: set[str]) -> bool:
        return case is not None and self._halves and is_for_odd(case, same, self._compared)

    @cached_property
    def _reached(self) -> ast.Module:
        return find_reached(_parse(self._job.original), self._job.qualname)

    @cached_property
    def _halves(self) -> bool:
        return halves_a_width(self._reached)

    @cached_property
    def _met_by_chance(self) -> set[str]:
        if not cuts_in_two(self._reached):
            return set()
        # What has no columns has halves of nothing, and tells of no other size.
        cases = [one for one in self._compared if one.label not in self._narrow]
        return find_met_by_chance(cases, self._errors - self._narrow, so_far=self._so_far)

    @cached_property
    def _void(self) -> set[str]:
        return self._those(makes_nothing_of_one)

    @cached_property
    def _narrow(self) -> set[str]:
        return self._those(lambda one: has_no_width(one, self._declared, 1 + (not self._halves)))

    @cached_property
    def _declared(self) -> Declarations:
        return read_declarations(self._job.original, self._job.qualname, self._job.assumed)

    @cached_property
    def _rounds(self) -> bool:
        return any(find_changed(_ROUNDS, self._job))

    @cached_property
    def _alike(self) -> dict[str, list[CaseRun]]:
        """For each call those that differ from it in sizes alone, itself included."""
        groups: list[tuple[tuple[object, ...], list[CaseRun]]] = []
        found: dict[str, list[CaseRun]] = {}
        for one in self._compared:
            look = _all_but_sizes(one)  # values of arguments need not be hashable
            group = next((members for known, members in groups if known == look), None)
            if group is None:
                group = []
                groups.append((look, group))
            group.append(one)
            found[one.label] = group
        return found

    def _is_of_sizes(self, what: str, case: CaseRun | None) -> bool:
        """Say whether sizes or strides decide what a result of the original shares memory with.

        ``x.contiguous()`` copies some tensors and is others: no caller can count on either. Where
        the original always copies, ``repeat(1)`` as an alias for one size is another function.
        """
        result = re.match(_MEMORY, what)
        if case is None or result is None:
            return False
        alike = self._alike[case.label]
        return len({one.original.aliases.get(result[1]) for one in alike}) > 1

    def _is_of_whole_numbers(self, one: CaseRun) -> bool:
        """Say whether whole numbers or flags are passed where nothing asks for them but a guess.

        With floating numbers in the same place the two were compared as well: that is what is
        meant.
        """
        text = _text_of(self._job.original, self._job.qualname)
        odd = _find_guessed_whole(one.case.assignment.specs)
        odd = {n: s for n, s in odd.items() if not _is_asked_for_whole(text, n)}
        if not odd or self._rounds or re.search(_TELLS_KINDS, text):
            return False
        guessed = [n for n in odd if not self._declared.of(n).kinds & {"int", "bool"}]
        twins = [c.case.assignment.specs.get(n) for c in self._compared for n in guessed]
        # a call that leaves it out says nothing of floats in its place
        return any(set() < list_kinds([twin]) <= _FLOATS for twin in twins if twin is not None)

    def _is_beside_floats(self, one: CaseRun) -> bool:
        """Say whether whole numbers are mixed with floats where floats alone are taken as well."""
        specs = one.case.assignment.specs
        text = _text_of(self._job.original, self._job.qualname)
        odd = {
            n: [len(t.shape) for t in list_tensors(s)]
            for n, s in specs.items()
            if list_kinds([s]) == {"int"} and re.search(_EITHER, n.lower())
        }
        if any(_is_asked_for_whole(text, n) or self._declared.of(n).kinds for n in odd):
            return False
        twins = [c.case.assignment.specs for c in self._compared if c.label not in self._errors]
        return bool(odd and list_kinds(specs.values()) & _FLOATS) and any(
            list_kinds([twin.get(n, specs[n])]) <= _FLOATS
            and [len(t.shape) for t in list_tensors(twin[n])] == dims
            for n, dims in odd.items()
            for twin in twins
        )

    def _is_loud(self, difference: Difference) -> bool:
        """Say whether the changed code refuses aloud what only mistakes or mixtures would pass."""
        text, code = difference.text, self._job.original
        case = self._cases.get(difference.case)
        return bool(
            (re.search(_AMBIGUOUS, text) and not re.search(_ASKS_EMPTY, code))
            or (
                _is_empty(case)
                and re.search(_OF_NOTHING, text)
                and not re.search(_ASKS_EMPTY, code)
            )
            or (
                case is not None
                and re.search(_WANTS_ONE, text)
                and (
                    (_is_mixed(case) and not re.search(_ASKS_DTYPE, _MADE_ALIKE.sub(r"\1", code)))
                    or self._is_beside_floats(case)
                )
            )
            or (case is not None and re.search(_OUTSIDE, text) and _indexes_nothing(case))
            or (
                case is not None
                and case.case.spread
                and (re.search(_REFUSED, text) or re.search(_EQUATION, code))
            )
            or (WRITES_INTO_LEAF in text and _is_empty(case))  # in a loop over no rows, nobody does
        )


def _all_but_sizes(one: CaseRun) -> tuple[object, ...]:
    """Return what a call is apart from the sizes of its arguments."""
    specs = one.case.assignment.specs.items()
    plain = tuple((n, str(s)) for n, s in specs if not isinstance(s, Tensor) and not _is_size(s))
    tensors = tuple((n, s.kind, len(s.shape)) for n, s in specs if isinstance(s, Tensor))
    whole = 0 not in list_dimensions(one.case.assignment.specs)
    made = one.case.assignment.recipe, one.case.training, one.gradients
    return (*made, one.dtype, plain, tensors, whole)


def _is_size(spec: Spec) -> bool:
    return isinstance(spec, Value) and type(spec.value) is int


def _is_mixed(one: CaseRun) -> bool:
    every = (t for spec in one.case.assignment.specs.values() for t in list_tensors(spec))
    return any(t.dtype == torch.float32 != one.dtype for t in every)


def _has_ones(one: CaseRun) -> bool:
    """Say whether a size is one or nothing: ``repeat_interleave(x, 1)`` may be ``x`` itself."""
    specs = one.case.assignment.specs
    whole = [s.value for s in specs.values() if isinstance(s, Value) and type(s.value) is int]
    return any(size in {0, 1} for size in (*list_dimensions(specs), *whole))


def _is_of_absence(difference: Difference) -> bool:
    """Say whether a gradient is none in one version, and there in the other."""
    absent = difference.what.startswith("requires_grad of ") or "None" in difference.text
    return difference.seen is Seen.GRADIENT and absent


def _is_empty(one: CaseRun | None) -> bool:
    """Say whether a tensor has no elements: then no gradient flows, whoever asks for one."""
    return one is not None and 0 in list_dimensions(one.case.assignment.specs)


@lru_cache(maxsize=64)
def _is_asked_for_whole(text: str, name: str) -> bool:
    """Say whether code does with an argument what is done with whole numbers: ``x.long()``."""
    for node in walk(_parse(text)):
        if isinstance(node, ast.Call):
            subjects = [getattr(node.func, "value", None), *node.args[:1]]
        else:
            subjects = [getattr(node.left, "value", None)] if isinstance(node, ast.Compare) else []
        if any(getattr(one, "id", "") == name for one in subjects) and re.search(
            _ASKS_WHOLE, ast.unparse(node)
        ):
            return True
    return False


def _find_guessed_whole(specs: Mapping[str, Spec]) -> dict[str, Spec]:
    return {
        n: s
        for n, s in specs.items()
        if list_kinds([s]) & {"int", "bool"} and not re.search(_MAY_BE_WHOLE, n.lower())
    }


def _is_thin(one: CaseRun) -> bool:
    """Say whether the object is made with a width of one: its weights fit everything."""
    recipe = one.case.assignment.recipe
    arguments = () if recipe is None else recipe.arguments
    return any(isinstance(s, Value) and type(s.value) is int and s.value == 1 for _, s in arguments)


def _indexes_nothing(one: CaseRun) -> bool:
    """Say whether whole numbers are beyond every size that they might be indexes of.

    Of the expert 3 of two experts, a loop over the experts makes nothing, and a table an error.
    """
    assignment = one.case.assignment
    arguments = () if assignment.recipe is None else assignment.recipe.arguments
    plain = (*assignment.specs.values(), *(spec for _, spec in arguments))
    sizes = [s.value for s in plain if isinstance(s, Value) and type(s.value) is int]
    most = max((*sizes, *list_dimensions(assignment.specs)), default=0)
    every = (t for s in assignment.specs.values() for t in list_tensors(s) if t.kind == "int")
    return one.case.flavour == "ordinary" and any(t.high > most for t in every)


def _wants_contiguous(job: Job) -> bool:
    """Say whether the code makes its result contiguous on purpose, or a caller beside it views it.

    Elsewhere a result is contiguous because some kernel has made it so.
    """
    before, after = (_text_of(text, job.qualname) for text in (job.original, job.patched))
    if before.count(".contiguous(") > after.count(".contiguous("):
        return True
    called = rf"\b{re.escape(job.qualname.rpartition('.')[2])}\("
    functions = (n for n in walk(_parse(job.original)) if isinstance(n, ast.FunctionDef))
    texts = (segment(source_lines(job.original), n) for n in functions)
    return any(re.search(called, t.partition(":")[2]) and ".view(" in t for t in texts)


def _parse(text: str) -> ast.Module:
    """Return the syntax of a text, nothing where it has none: that is said when it is loaded."""
    try:
        return parse_once(text)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=4)
def _text_of(text: str, qualname: str) -> str:
    """Return the source of a function, or of the class that it is a method of."""
    names = qualname.partition(".<locals>")[0].split(".")
    scope: ast.Module | ast.stmt = _parse(text)
    for name in names:
        body = getattr(scope, "body", [])
        found = [n for n in body if getattr(n, "name", None) == name]
        if not found:
            return ""
        scope = found[-1]
    return segment(source_lines(text), scope) if isinstance(scope, ast.stmt) else ""
