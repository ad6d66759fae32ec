"""Losses, sums and means of what one mask selects: computed of all, the rest left out.

``((x[m] - y[m]) ** 2).mean()`` is a sum of ``where``, divided by how many the mask selects;
``F.cross_entropy(x[m], y[m])`` has a label for what is left out. ``x.masked_select(m)`` is read as
``x[m]`` is, but for its mask, which may be one of fewer elements: ``m.expand_as(x)`` counts.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.layout import style_of
from npufix.rewriters.edit.statements.masked.losses import function_of, settings_of
from npufix.rewriters.edit.statements.masked.ways import is_apart
from npufix.rewriters.edit.statements.proposal import Change, Proposal, put
from npufix.rewriters.facts.index_facts import is_of_configuration
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import copy_tree
from npufix.rewriters.graph.nodes import once_per_value
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Evaluation, Node

ADDED_UP = (
    r"sum(?<=\bsum)\(\)|mean(?<=\bmean)\(\)|torch(?<=\btorch)\.(sum|mean)\(\w+\)"
    r"|_(loss|entropy|with_logits)\(|Loss\("
    r"|self\.(?i:\w*(bce|crit|l1|loss|mae|mse|nll)\w*|(\w*_)?ce)\("
)
_LOSSES = frozenset(
    {
        "binary_cross_entropy", "binary_cross_entropy_with_logits", "huber_loss", "l1_loss",
        "mse_loss", "smooth_l1_loss",
    }
)  # fmt: skip
_ZERO_AT_ZERO = _LOSSES - {"binary_cross_entropy", "binary_cross_entropy_with_logits"}
_FINITE = frozenset({"isfinite", "isinf", "isnan"})
_HOLDS_COUNTS = frozenset({"torch.float32", "torch.float64", "torch.int64"})
_OF_CLASSES = frozenset({"cross_entropy", "nll_loss"})
REDUCED = (
    "|".join(sorted({"mean", "sum", *_LOSSES, *_OF_CLASSES}))
    + r"|(?i:\w*(bce|crit|l1|loss|mae|mse|nll)\w*|(\w*_)?ce)"
)
"""The words of what is found: ``self.criterion(x[m], y[m])`` is one of the losses."""
_FORMS = {"sum": "added_up", "mean": "averaged"}
_WHOLE = (ast.Assign, ast.Call, ast.Return)
"""What needs no brackets around a quotient."""
_SELECTING = frozenset({"masked_select", Op.GETITEM})
_OF_ROWS = 2
_MASK = re.compile(r"(^|_)(mask|valid|masked)(_|$)")
"""What an argument is called that is a mask, though nothing else says so."""


class OtherUseError(Exception):
    """Somebody else needs the selected values, or something else is done with them."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What a mask selects of a tensor: ``x[m]``, ``x.masked_select(m)``."""

    code: ast.expr
    tensor: ast.expr
    mask: ast.expr
    by_call: bool = False


def read_selection(code: ast.AST) -> Selection | None:
    """Return what an expression selects by one index, which may be a mask."""
    match code:
        case ast.Subscript(tensor, mask):
            return Selection(code, tensor, mask)
        case ast.Call(
            ast.Attribute(ast.Name("torch"), "masked_select"), [tensor, mask], []
        ) | ast.Call(ast.Attribute(tensor, "masked_select"), [mask], []):
            return Selection(code, tensor, mask, by_call=True)
    return None


def find_masked_values(here: Surroundings) -> Iterator[Proposal]:
    """Yield sums and means of ``f(x[mask], y[mask])`` where ``f`` computes element by element."""
    for proposal, _ in _find_masked_sums(here):
        yield proposal


def reads_under_mask(here: Surroundings) -> set[int]:
    """Return the ids of the selections that such a sum does without."""
    if re.search(ADDED_UP, here.text(here.flow.function)) is None:
        return set()
    return {read for _, reads in _find_masked_sums(here) for read in reads}


def _find_masked_sums(  # noqa: C901 - one case a way to add up
    here: Surroundings,
) -> Iterator[tuple[Proposal, set[int]]]:
    if not here.imports_torch:
        return
    for node in here.nodes:
        match node:
            case ast.Call(ast.Attribute(ast.Name("torch"), how), [added], []) if how in _FORMS:
                pass
            case ast.Call(ast.Attribute(added, how), [], []) if how in _FORMS:
                pass
            case ast.Call(_, [added, _]) if (op := _loss_of(here, node)) is not None:
                words = settings_of(here, node)
                given = {k.arg: ast.unparse(k.value).strip("'\"") for k in words}
                how = given.get("reduction", "mean")
                if op in _OF_CLASSES:
                    found = _labelled(here, node, given)
                    if found is not None:
                        yield found
                    continue
                if how not in _FORMS or not given.keys() <= {"reduction", "beta", "delta"}:
                    continue
                if op in _ZERO_AT_ZERO and (found := _filled(here, node, how)) is not None:
                    yield found
                    continue
                added = node
            case _:
                continue
        value, whole = here.value(added), here.value(node)
        if value is None or whole is None or value.op in _SELECTING:
            continue  # ``x[mask].sum()`` is a pattern of its own
        try:
            ends = [a for a in value.args if a.op != Op.CONST] if value is whole else [value]
            parts, mask = find_selections(here, *ends, operations=_SELECTING, casts=True)
            yield _together(here, node, added, {*parts, whole}, mask, how)
        except OtherUseError:
            continue


def _loss_of(here: Surroundings, code: ast.Call) -> str | None:
    """Return which loss a call is that adds up by itself: ``F.l1_loss(x, y)``."""
    node = here.value(code)
    op = "" if node is None else node.op
    return op if op in _LOSSES | _OF_CLASSES else None


def _two_selected(here: Surroundings, code: ast.Call) -> tuple[list[Selection], Node, str] | None:
    """Return ``x[m]`` and ``y[m]`` of a loss of both, with the mask and its name."""
    match list(map(read_selection, code.args)):
        case [Selection() as first, Selection() as second] if first.by_call == second.by_call:
            mask, name = here.value(first.mask), name_of_mask(here, first.mask)
            if mask is not None and name and mask is here.value(second.mask):
                known = first.by_call or _is_mask(here, mask)
                return ([first, second], mask, name) if known else None
    return None


def _filled(here: Surroundings, code: ast.Call, how: str) -> tuple[Proposal, set[int]] | None:
    """Return ``F.l1_loss(x[m], y[m])`` with zeros in both where ``m`` is false."""
    found = _two_selected(here, code)
    if found is None:
        return None
    reads, mask, name = found
    quote = style_of("".join(here.lines)).quote
    left, right = (f"{here.text_of_owner(r.tensor)}.masked_fill(~{name}, 0)" for r in reads)
    settings = settings_of(here, code)
    words = [f"{k.arg}={ast.unparse(k.value)}" for k in settings if k.arg != "reduction"]
    given = ", ".join([left, right, *words, f"reduction={quote}sum{quote}"])
    count = _count(here, name, reads[0].tensor if reads[0].by_call else None)
    new = _total(here, code, f"{function_of(here, code)}({given})", count, how)
    proposal = put(
        here,
        code,
        new,
        form=_FORMS[how],
        asked=_asked(here, name, reads),
        proven={"finite-outside", *_proven(here, mask, reads)},
    )
    return proposal, {id(read.code) for read in reads}


def _count(here: Surroundings, mask: str, whole: ast.expr | None) -> str:
    """Return how many elements a mask selects, ``whole`` being what it is expanded to."""
    return mask if whole is None else f"{mask}.expand_as({here.text(whole)})"


def _total(here: Surroundings, call: ast.Call, summed: str, mask: str, how: str) -> str:
    """Return what stands in place of a call: a sum, or the mean of what the mask selects."""
    if how != "mean":
        return summed
    mean = f"{summed} / {mask}.sum()"
    return mean if isinstance(here.parents.get(id(call)), _WHOLE) else f"({mean})"


def _asked(
    here: Surroundings, mask: str, reads: Sequence[Selection]
) -> tuple[tuple[str, str], ...]:
    """Return what conditions are about: the mask, and the first two tensors that it selects of."""
    texts = dict.fromkeys(here.text(read.tensor) for read in reads)
    return (("mask", mask), *zip("xy", texts, strict=False))


def tells_finite(mask: Node) -> bool:
    """Tell whether a mask leaves out what is not finite: its gradient would be NaN."""
    return any(part.op in _FINITE for part in mask.walk())


def _proven(here: Surroundings, mask: Node, reads: Sequence[Selection]) -> set[str]:
    if all(read.by_call for read in reads):
        return {"boolean-mask", "same-rank-mask"}
    return {"boolean-mask"} if _is_known(here, mask) else set()


def _labelled(
    here: Surroundings, code: ast.Call, given: dict[str | None, str]
) -> tuple[Proposal, set[int]] | None:
    """Return ``F.cross_entropy(x[m], y[m])`` with a label that it ignores where ``m`` is false."""
    found = _two_selected(here, code)
    if found is None:
        return None
    (scores, labels), mask, name = found
    usual = given.keys() <= {"reduction", "weight", "label_smoothing", "ignore_index"}
    ignored = given.get("ignore_index", "-100")
    plain = usual and given.get("reduction", "mean") in _FORMS and re.fullmatch(r"-?\d+", ignored)
    if not plain or tells_finite(mask) or scores.by_call:
        return None
    whole = here.evaluations[id(scores.tensor)]
    facts = here.facts(whole, x=whole.node, m=mask)
    rows, dims = facts.ndim("x"), facts.ndim("m")
    known = dims is not None and rows == dims + 1
    if (rows is not None and dims is not None and not known) or dims == 0:
        return None
    flat = "" if rows == _OF_ROWS and known else ".flatten()"
    text = f"{here.text(labels.tensor)}.masked_fill(~{name}, {ignored}){flat}"
    kept = f"{here.text(scores.tensor)}{'.flatten(0, -2)' if flat else ''}"
    changes = (Change(here.span(scores.code), kept), Change(here.span(labels.code), text))
    asked = (("mask", name), ("x", here.text(scores.tensor)), ("labels", here.text(labels.tensor)))
    proven = {*_proven(here, mask, [scores]), *(["row-mask"] if known else [])}
    if _tells_classes(mask, here.evaluations[id(labels.tensor)].node):
        proven |= {"boolean-mask", "labels-of-classes", "row-mask"}
    proposal = Proposal(
        code,
        form="of_selected",
        changes=changes,
        shown=f"{kept}, {text}",
        asked=asked,
        proven=frozenset(proven),
    )
    return proposal, {id(scores.code), id(labels.code)}


def _tells_classes(mask: Node, labels: Node) -> bool:
    """Tell whether a mask asks what labels are: ``labels != -100``, ``y >= 0``, ``y != 255``.

    Then they are numbers of classes, for no probability is; the loss takes nothing but tensors, so
    that the mask is one, of their shape, and scores have the classes as one dimension more.
    """
    if mask.op not in operators.COMPARISONS or labels not in mask.args:
        return False
    other = next((arg for arg in mask.args if arg is not labels), labels)
    if other.op == Op.CONST:
        asks_sign = (mask.op, mask.args[0] is labels) in {("ge", True), ("le", False)}
        named = type(other.value) is int
        return named and (other.value not in {0, 1} or (asks_sign and other.value == 0))
    return other.op in {Op.ATTR, Op.PARAM} and "ignore" in str(other.value)


def find_selections(
    here: Surroundings,
    *ends: Node,
    operations: frozenset[str] = frozenset({Op.GETITEM}),
    casts: bool = False,
) -> tuple[set[Node], Node]:
    """Return what values are computed from, down to the selections, and the mask of all of them.

    With ``casts`` also of ``(x[m] == y[m]).float()``: where the dtype is that of the result.

    Raises:
        OtherUseError: there are several masks, or other values take part.

    """
    parts: set[Node] = set()
    masks: dict[Node, None] = {}
    stack = list(ends)
    while stack:
        node = stack.pop()
        if node in parts or node.op == Op.CONST:
            continue
        picked = node.op in operations
        if picked and (node.op != Op.GETITEM or _is_mask(here, node.args[1])):
            masks[node.args[1]] = None
        elif casts and node.op == Op.CAST:
            stack.append(node.args[0])
        elif node.op == Op.PHI:  # ``if weight is not None: loss = loss * weight[mask]``
            stack += node.args[1:]
        elif _is_number(here, node):
            continue
        elif _is_of_each(node):
            stack += node.args
        else:
            raise OtherUseError
        parts.add(node)
    if len(masks) != 1:
        raise OtherUseError
    return parts, next(iter(masks))


def _is_number(here: Surroundings, node: Node) -> bool:
    """Tell whether a value is a number or a setting, or computed of such: ``-self.cfg["alpha"]``.

    Whoever else needs it has it still. A tensor that is made once, ``self.weight``, meets as many
    elements as the mask selects only if it is one number to all of them, or to all rows.
    """
    parts, seen = [node], {node}
    for part in parts:  # grows
        if part.op == Op.CONST or is_of_configuration(part):
            continue
        facts = here.facts(here.flow.evaluations[0], x=part)
        if facts.is_number("x") or (part.op == Op.ATTR and facts.is_plain("x")):
            continue
        if not _is_of_each(part):
            return False
        parts += [arg for arg in part.args if arg not in seen]
        seen.update(part.args)
    return True


@once_per_value
def _is_mask(here: Surroundings, node: Node) -> bool:
    if node.op in {"and", "or", "invert"}:  # of comparisons, each of whatever
        return all(_is_mask(here, arg) for arg in node.args)
    named = node.op == Op.PARAM and _MASK.search(str(node.value)) is not None
    return _is_known(here, node) or node.op in operators.COMPARISONS or named


def _is_known(here: Surroundings, mask: Node) -> bool:
    return here.facts(here.flow.evaluations[0], mask=mask).is_bool_tensor("mask") is True


def _is_of_each(node: Node) -> bool:
    """Tell whether an element of the result needs one of each operand: a loss without reduction."""
    if node.op.removesuffix("(*)") in operators.ELEMENTWISE:
        return True
    if node.op == "unsqueeze":  # ``n[mask][..., None]``, one for each row
        return node.args[1].value == -1
    values = [arg.value for arg in node.args if arg.op == Op.CONST]
    return node.op in _LOSSES and "none" in values


def _together(  # noqa: PLR0913, PLR0917 - what is added up, and how
    here: Surroundings, call: ast.Call, added: ast.expr, parts: set[Node], mask: Node, how: str
) -> tuple[Proposal, set[int]]:
    """Return the sum of all elements, with zeros where the mask says so, and what it replaces."""
    own = _require_alone(here, call, parts)
    reads = {
        id(e.code): read
        for e in own
        if e.node.op in _SELECTING and (read := read_selection(e.code)) is not None
    }
    every = list(reads.values())
    names = {name_of_mask(here, read.mask) for read in every}
    name = names.pop() if len(names) == 1 else ""
    if not name or tells_finite(mask) or here.value(every[0].mask) is not mask:
        raise OtherUseError
    if len({read.by_call for read in every}) > 1:
        raise OtherUseError
    changes = []
    inside = {id(n) for n in ast.walk(added)}
    for read in every:
        if id(read.code) in inside:
            continue
        statement = here.statement_of(read.code)
        match statement:
            case ast.Assign([ast.Name(kept)], code) if code is read.code and kept == here.text(
                read.tensor
            ):  # ``x = x[mask]``: nothing is left to say
                lines = here.whole_lines(statement)
                if lines is None:
                    raise OtherUseError
                changes.append(Change(lines, ""))
            case _:
                changes.append(Change(here.span(read.code), here.text_of_owner(read.tensor)))
    shape = added if isinstance(added, ast.Name) else every[0].tensor
    count = _count(here, name, shape if every[0].by_call else None)
    text = without_masks(here, added, set(reads))
    if added is call:
        text = _of_each(here, call, text, style_of("".join(here.lines)).quote)
    new = _total(here, call, f"torch.where({name}, {text}, 0).sum()", count, how)
    proposal = Proposal(
        call,
        form=_FORMS[how],
        changes=(*changes, Change(here.span(call), new)),
        shown=new,
        asked=_asked(here, name, every),
        proven=frozenset({*_proven(here, mask, every), *_of_answers(here.value(added))}),
    )
    return proposal, set(reads)


def _require_alone(here: Surroundings, call: ast.Call, parts: set[Node]) -> list[Evaluation]:
    """Return where the parts of a sum are computed.

    Raises:
        OtherUseError: somebody else needs them, or they are added up twice.

    """
    whole = here.value(call)
    own = [
        e
        for e in here.flow.evaluations
        if e.node in parts and not is_apart(here, e.code, call, parts)
    ]
    for evaluation in own:
        code = evaluation.code
        if isinstance(code, ast.expr) and evaluation.node is not whole:
            require_inside(here, code, parts)
        elif isinstance(code, ast.Call) and code is not call:
            raise OtherUseError
    return own


def _of_answers(added: Node | None) -> frozenset[str]:
    """Return what holds of ``(x[m] == y[m]).float()``: no gradient, and sums that are counts."""
    fits = added is not None and (added.op != Op.CAST or added.args[1].value in _HOLDS_COUNTS)
    while added is not None and added.op == Op.CAST:
        added = added.args[0]
    if added is None or added.op not in operators.COMPARISONS:
        return frozenset()
    return frozenset({"finite-outside", *(["sum-fits-dtype"] if fits else [])})


def _of_each(here: Surroundings, call: ast.Call, loss: str, quote: str) -> str:
    """Return the text of a loss that is not added up."""
    code = ast.parse(loss, mode="eval").body
    assert isinstance(code, ast.Call)  # noqa: S101 - it is one
    code.func = ast.parse(function_of(here, call), mode="eval").body
    code.keywords = [k for k in settings_of(here, call) if k.arg != "reduction"]
    return f"{ast.unparse(code)[:-1]}, reduction={quote}none{quote})"


def require_inside(here: Surroundings, code: ast.expr, parts: set[Node]) -> None:
    """Refuse a value that anything but the sum needs."""
    outer = here.parents.get(id(code))
    while isinstance(outer, (ast.Attribute, ast.keyword)):
        outer = here.parents.get(id(outer))
    match outer:
        case ast.Assign([ast.Name()], value) if value is code:
            return
        case ast.expr() if here.value(outer) in parts:
            return
    raise OtherUseError


def name_of_mask(here: Surroundings, mask: ast.expr) -> str:
    """Return the name that a mask has all the time, "" if it has none such."""
    match mask:
        case ast.Name(name):
            stored = [
                n
                for n in here.nodes
                if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
            ]
            return name if len(stored) <= 1 else ""
    return ""


COPIED = "clone()"
"""In the place of a mask: a gradient needs the tensor that is written to as it was before."""


def without_masks(
    here: Surroundings, code: ast.expr, reads: set[int], filled: Mapping[int, str] | None = None
) -> str:
    """Return the text of an expression with ``x`` for ``x[mask]``.

    Those ``filled`` are one where their mask is not true, ``torch.where(mask, x, 1)``, or copies.
    """
    if not any(id(n) in reads for n in ast.walk(code)):
        return here.text(code)
    masks = {
        (n.lineno, n.col_offset, n.end_col_offset): (filled or {}).get(id(n), "")
        for n in ast.walk(code)
        if isinstance(n, (ast.Call, ast.Subscript)) and id(n) in reads
    }

    class Whole(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            if not isinstance(node, (ast.Call, ast.Subscript)):
                return self.generic_visit(node)
            mask = masks.get((node.lineno, node.col_offset, node.end_col_offset))
            read = None if mask is None else read_selection(node)
            if read is None:
                return self.generic_visit(node)  # ``n[mask][..., None]``
            if not mask:
                return read.tensor
            whole = ast.unparse(read.tensor)
            text = f"{whole}.{COPIED}" if mask == COPIED else f"torch.where({mask}, {whole}, 1)"
            return ast.parse(text, mode="eval").body

    return ast.unparse(Whole().visit(copy_tree(code)))
