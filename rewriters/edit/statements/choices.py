"""Branches on what a tensor holds, of which the device can choose itself."""

from __future__ import annotations

import ast
import builtins
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.edit.edit import holds_comment
from npufix.rewriters.edit.statements.proposal import Change, Proposal, put
from npufix.rewriters.edit.statements.surroundings import is_pure
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Evaluation, Node

    IsCount = Callable[[Node], bool]

CHOOSE = (
    "the host waits for the answer: compute both and choose with torch.where, or decide by what "
    "the host knows already"
)
_GOES_ON = (
    "the host waits for the answer, since other code comes next: let that run in either case (what "
    "x[mask] has none of, it computes nothing of), weigh or choose with torch.where, or decide "
    "once, by what the host knows already, and hand the answer in"
)
_IS_SAME = (
    "each call compares a whole tensor with the one that it remembers, and the host waits: ask "
    "whether it is the same one, x is self.kept and x._version == self.version, before its "
    "elements are compared, or let the caller say what has changed"
)
_REMEMBERS = re.compile(r"\b(torch\.)?(equal|allclose)\(([^()]*, *)?self\.\w+")
LEAVES = (
    "the host waits in every round to know whether it is the last: where rounds change nothing any "
    "more, go through all of them, or ask every few rounds"
)
_BY_ZERO = (
    "the host waits for the answer: a count is never zero as n.clamp(min=1), another divisor d as "
    "torch.where(d == 0, 1, d); divide by that, and choose with torch.where if the other arm is "
    "another value"
)
_OF_NONE = (
    'the host waits for the answer: take the loss with reduction="sum" and divide it by how many '
    "labels count, (labels != ignored).sum().clamp(min=1), which is zero with gradients of zero "
    "where none does: a mean of nothing is NaN, and torch.where hands its gradient on"
)
_TWICE = (
    "the host waits twice, for the answer and for how many rows x[mask] has: select in either "
    "case, which takes all of them where none is left out"
)
_LOSS = re.compile(r"(?i)\w*(loss|criterion|cross_entropy)(_fn|_fct|_func)?")
"""What takes a mean of what counts, unless told otherwise: ``self.loss_fn(logits, labels)``."""
_REDUCED = frozenset({"amax", "amin", "max", "mean", "min", "norm", "prod", "std", "sum"})
_MOST_WORK = 12
"""Operators of an arm: computing both must not cost more than the wait."""
_OF_ANOTHER_SHAPE = frozenset(
    {"cat", "expand", "interpolate", "masked_select", "narrow", "nonzero", "pad", "repeat",
     "repeat_interleave", "stack", "unique"}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Branch:
    code: ast.stmt | ast.expr
    until: ast.stmt | ast.expr
    """The last that takes part: a ``return`` behind the ``if``."""
    test: ast.expr
    first: ast.expr
    second: ast.expr | None
    """``None`` for the old value of ``name``."""
    head: str
    name: str = ""


def choose(here: Surroundings, node: ast.AST) -> Proposal | None:
    """Return a branch on what a tensor holds as a choice, ``None`` if it is another thing.

    ``node`` is an ``if`` with or without ``else``, or a conditional expression.
    """
    branch = read_branch(here, node)
    if branch is None:
        return None
    second = branch.second
    if not _is_small(here, branch.first) or (second is not None and not _is_small(here, second)):
        told = second and (isinstance(node, ast.If) or _divides_by_tested(here, branch))
        return _advise_on_large(here, branch) if told else None
    if _divides_by_tested(here, branch):
        return Proposal(branch.code, _BY_ZERO)
    test = _as_tensor(here, branch.test)
    whole = _lines_of(here, branch)
    if not test or whole is None or not here.imports_torch:
        return Proposal(branch.code, CHOOSE)
    other = branch.name if second is None else here.text(second)
    chosen = ", ".join((test, here.text(branch.first), other))
    new = f"{branch.head}torch.where({chosen})"
    text = f"{here.indent(branch.code)}{new}\n" if isinstance(branch.code, ast.stmt) else new
    asked = [branch.first] if second is None else [branch.first, second]
    return Proposal(
        branch.code,
        form="decided",
        changes=(Change(whole, text),),
        shown=new,
        asked=tuple((f"arm{n}", f"lambda:{here.text(arm)}") for n, arm in enumerate(asked)),
        proven=frozenset({"zero-gradients"} if _learn_alike(here, branch) else ()),
    )


def divide(  # noqa: C901, PLR0911 - one case a way
    here: Surroundings, node: ast.AST, is_count: IsCount
) -> Proposal | None:
    """Return a division by a value where that is above one, as one by no less than one.

    ``if n > 1: loss /= n`` is ``loss /= n.clamp(min=1)``, and so it is of a count above zero.
    """
    if (limited := _limit_count(here, node, is_count)) is not None:
        return limited
    branch = read_branch(here, node)
    if branch is not None and (found := _divide_or_nothing(here, branch, is_count)) is not None:
        return found
    by: ast.expr
    match node, branch:
        case ast.If(test, [ast.AugAssign(ast.Name(name), ast.Div(), by)], []), _:
            branch = _Branch(node, node, test, by, None, f"{name} /= ", name)
        case _, _Branch(first=ast.BinOp(left, ast.Div(), by), second=other, name=name):
            if ast.dump(left) != ast.dump(other or ast.Name(name, ast.Load())):
                return None
        case _:
            return None
    value = here.value(by)
    counts = value is not None and is_count(value)
    if branch is None or not isinstance(by, ast.Name):
        return None
    if not _is_above_one(branch.test, by.id, counts=counts):
        return None
    whole, old = _lines_of(here, branch), here.text(branch.first)
    if whole is None or not old.endswith(by.id) or "\n" in old:
        return None
    new = f"{branch.head}{old}.clamp(min=1)"
    text = f"{here.indent(branch.code)}{new}\n" if isinstance(branch.code, ast.stmt) else new
    proven = {"never-nan", "without-gradient"} if counts else set[str]()
    proven |= {"is-tensor"} if here.is_tensor(by) else set()
    asked = [("x", by.id)]
    if isinstance(branch.first, ast.BinOp):
        arms = (branch.first, branch.first.left)
        asked += [(f"arm{n}", f"lambda:{here.text(arm)}") for n, arm in enumerate(arms)]
    elif _is_tensor_before(here, branch):
        proven.add("same-shape")  # what is divided in place
    return Proposal(
        branch.code,
        form="divided",
        changes=(Change(whole, text),),
        shown=new,
        asked=tuple(asked),
        proven=frozenset(proven),
    )


def _divide_or_nothing(here: Surroundings, branch: _Branch, is_count: IsCount) -> Proposal | None:
    """Return ``torch.where(n > 0, x / n.clamp(min=1), 0)`` for ``x / n if n > 0 else 0``."""
    match branch.test, branch.first, branch.second:
        case (
            ast.Compare(ast.Name(asked), [ast.Gt() | ast.NotEq()], [ast.Constant(0)]),
            ast.BinOp(left, ast.Div(), ast.Name(name) as by),
            ast.expr() as second,
        ) if asked == name and (other := _zero_beside(here, second)):
            pass
        case _:
            return None
    value, whole, at = here.value(by), _lines_of(here, branch), here.evaluations.get(id(left))
    counts = value is not None and is_count(value)
    if value is None or at is None or whole is None or not (counts or value.op == "sum"):
        return None
    alone = here.facts(at, x=at.node, n=value)
    if (alone.ndim("x"), alone.ndim("n")) != (0, 0):
        return None
    if not (_is_sum_of_name(here, at) or _is_small(here, left)):
        return None
    if not here.imports_torch:
        return None
    test = here.text(branch.test)
    some = f"{name}.clamp(min=1)" if counts else f"torch.where({test}, {name}, 1)"
    new = f"{branch.head}torch.where({test}, {here.text(left)} / {some}, {other})"
    text = f"{here.indent(branch.code)}{new}\n" if isinstance(branch.code, ast.stmt) else new
    is_number = isinstance(branch.second, ast.Constant)
    proven = {"same-shape"} if is_number else {"takes-tensors"}
    return Proposal(
        branch.code,
        form="divided_or_nothing",
        changes=(Change(whole, text),),
        shown=new,
        asked=(("x", name),),
        proven=frozenset(proven),
    )


def _is_sum_of_name(here: Surroundings, at: Evaluation) -> bool:
    """Tell whether a value only adds up a tensor that is there in either case: ``loss.sum()``."""
    summed = at.node.args[0] if at.node.op == "sum" else None
    own = summed is not None and any(value is summed for value in at.names.values())
    return own and here.facts(at, x=at.node).is_tensor("x") is True


def _zero_beside(here: Surroundings, code: ast.expr) -> str:
    """Return what is chosen beside a mean: a number, ``x.sum() * 0``; "" if it is no such thing.

    ``torch.tensor(0.0, device=x.device)`` would be copied to the device in each step: its number.
    """
    match code:
        case ast.Constant(int() | float()):
            return here.text(code)
        case ast.Call(function, [ast.Constant(int() | float()) as number], words) if (
            here.dotted(function) == "torch.tensor"
        ):
            usual = {word.arg for word in words} <= {"device", "dtype"}
            return here.text(number) if usual else ""
    at = here.evaluations.get(id(code))
    if at is None or not is_nothing(code) or not _is_small(here, code):
        return ""
    return here.text(code) if here.facts(at, x=at.node).ndim("x") == 0 else ""


def _limit_count(here: Surroundings, code: ast.AST, is_count: IsCount) -> Proposal | None:
    """Return ``n.clamp(min=1)`` for ``n if n > 0 else 1``, and for ``n if n > 0 else n + 1``."""
    match code:
        case ast.IfExp(
            ast.Compare(ast.Name(asked), [ast.Gt() | ast.NotEq()], [ast.Constant(0)]),
            ast.Name(name) as count,
            other,
        ) if asked == name:
            pass
        case ast.IfExp(
            ast.Compare(ast.Name(asked), [ast.Eq() | ast.LtE()], [ast.Constant(0)]),
            other,
            ast.Name(name) as count,
        ) if asked == name:
            pass
        case _:
            return None
    value = here.value(count)
    if value is None or ast.unparse(other) not in {"1", "1.0", f"{name} + 1"}:
        return None
    counts = is_count(value)
    if not counts and value.op != "sum":
        return None
    return put(
        here,
        code,
        f"{name}.clamp(min=1)",
        form="limited",
        asked=(("x", name),),
        proven={"never-negative"} if counts else set(),
    )


def _is_tensor_before(here: Surroundings, branch: _Branch) -> bool:
    at = here.evaluations[id(branch.test)]
    old = at.names.get(branch.name)
    return old is not None and here.facts(at, x=old).is_tensor("x") is True


def _is_above_one(test: ast.expr, name: str, *, counts: bool) -> bool:
    """Tell whether a test is ``n > 1``, or ``n > 0`` of what counts something."""
    match test:
        case ast.Compare(ast.Name(own), [operator], [ast.Constant(int() | float() as limit)]):
            least = isinstance(operator, ast.GtE) and limit == 1
            above = isinstance(operator, ast.Gt) and (limit == 1 or (counts and limit == 0))
            return own == name and (least or above)
    return False


def _advise_on_large(here: Surroundings, branch: _Branch) -> Proposal:
    """Return what to do about arms that are much work.

    Beside ``logits.mean() * 0`` the loss of no labels is NaN; ``where`` hands its gradient on.
    """
    if _takes_loss_of_some(
        here, branch.test, [arm for arm in (branch.first, branch.second) if arm]
    ):
        return Proposal(branch.code, _OF_NONE)
    arms = [here.value(arm) for arm in (branch.first, branch.second) if arm]
    if len(arms) > 1 and any(
        a and a.op == Op.GETITEM and a.args[0] is b and _picks(here, a)
        for a, b in zip(arms, reversed(arms), strict=True)
    ):
        return Proposal(branch.code, _TWICE)
    by_zero = any(a and _is_zero(a) for a in arms) or _divides_by_tested(here, branch)
    return Proposal(branch.code, _BY_ZERO if by_zero else CHOOSE)


def _is_zero(arm: Node) -> bool:
    by_zero = any(factor.op == Op.CONST and factor.value == 0 for factor in arm.args)
    return arm.op in {"zeros", "zeros_like", "new_zeros"} or (arm.op == "mul" and by_zero)


def _learn_alike(here: Surroundings, branch: _Branch) -> bool:
    """Tell whether both arms read the same tensors: what learns in one learns in the other."""
    at = here.evaluations[id(branch.test)]
    old = None if branch.second is None else here.value(branch.second)
    arms = [here.value(branch.first), old or at.names.get(branch.name)]
    read = [_read_by(here, arm) for arm in arms if arm is not None]
    return len(read) == len(arms) and read[0] == read[1]


def _read_by(here: Surroundings, arm: Node) -> set[Node]:
    """Return what may have a gradient among the values that an arm begins with."""
    ends = {Op.PARAM, Op.ATTR, Op.CALL, Op.ITEM, Op.ELEMENT, Op.GLOBAL, Op.CARRIED, Op.PHI}
    at = here.flow.evaluations[0]
    return {
        node for node in arm.walk() if node.op in ends and not here.facts(at, x=node).is_number("x")
    }


def read_branch(here: Surroundings, node: ast.AST) -> _Branch | None:
    """Return what a branch gives in either case, ``None`` if it does more than give a value."""
    match node:
        case ast.If(test, [ast.Assign([ast.Name(one)], first)], []):
            return _Branch(node, node, test, first, None, f"{one} = ", one)
        case ast.If(
            test, [ast.Assign([ast.Name(one)], first)], [ast.Assign([ast.Name(two)], second)]
        ):
            same = one == two
            return _Branch(node, node, test, first, second, f"{one} = ") if same else None
        case ast.If(test, [ast.Return(ast.expr() as first)], [ast.Return(ast.expr() as second)]):
            return _Branch(node, node, test, first, second, "return ")
        case ast.If(test, [ast.Return(ast.expr() as first)], []):
            match here.list_behind(node):
                case [ast.Return(ast.expr() as second) as last]:
                    return _Branch(node, last, test, first, second, "return ")
        case ast.IfExp(test, first, second):
            return _Branch(node, node, test, first, second, "")
    return None


def _lines_of(here: Surroundings, branch: _Branch) -> tuple[int, int, int, int] | None:
    if isinstance(branch.code, ast.expr):
        return here.span(branch.code)
    assert isinstance(branch.until, ast.stmt)  # noqa: S101 - both are statements
    first, last = here.whole_lines(branch.code), here.whole_lines(branch.until)
    comments = holds_comment("".join(here.lines), here.lines, branch.code)
    if first is None or last is None or comments:
        return None
    return first[0], 0, last[2], last[3]


def _is_small(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether an arm computes a tensor of its own with a few operators and nothing else."""
    node = here.value(code)
    if node is None or not here.is_tensor(code) or not is_pure(here, node):
        return False
    parts = list(node.walk())
    # What ``x[mask]`` has none of is no number: its mean is NaN, and so is the gradient.
    if any(part.op in _OF_ANOTHER_SHAPE or _picks(here, part) for part in parts):
        return False
    work = [p for p in parts if p.op in operators.TABLE and p.op not in operators.VIEWS]
    return len(work) <= _MOST_WORK


def _picks(here: Surroundings, node: Node) -> bool:
    return (
        node.op == Op.GETITEM
        and here.facts(here.flow.evaluations[0], m=node.args[1]).is_tensor("m") in {True, None}
        and node.args[1].op not in {Op.CONST, Op.SLICE, Op.TUPLE}
    )


def _divides_by_tested(here: Surroundings, branch: _Branch) -> bool:
    """Tell whether an arm divides by what the test compares, or by a count of the same elements.

    By zero, where it is not taken: ``loss.sum() / (y != -1).sum()`` beside ``(y == -1).all()``.
    """
    tested = here.value(branch.test)
    parts = set() if tested is None else {p for p in tested.walk() if p.op != Op.CONST}
    compared = {arg for p in parts if p.op in operators.COMPARISONS for arg in p.args} & parts
    for arm in (branch.first, branch.second):
        node = None if arm is None else here.value(arm)
        for part in [] if node is None else node.walk():
            if part.op in {"div", "reciprocal"} and part not in parts:
                by = part.args[-1]
                counts = by.op in {"sum", "count_nonzero"} and not compared.isdisjoint(by.walk())
                if by in parts or counts:
                    return True
    return False


def _as_tensor(here: Surroundings, test: ast.expr) -> str:
    """Return a test as a tensor of one truth value, "" if it is more than that."""
    match test:
        case ast.UnaryOp(ast.Not(), inner):
            text = _as_tensor(here, inner)
            plain = isinstance(inner, (ast.Call, ast.Name))
            return text and (f"~{text}" if plain else f"~({text})")
        case ast.BoolOp() | ast.Call(ast.Attribute(_, "item")):
            return ""
    node = here.value(test)
    return here.text(test) if node is not None and here.is_tensor(test) is not False else ""


def is_nothing(code: ast.expr) -> bool:
    """Tell whether code is zero, whatever else it reads: ``pred.sum() * 0``."""
    match code:
        case ast.Constant(value):
            return value in {0, None}
        case ast.BinOp(left, ast.Mult(), right):
            return is_nothing(left) or is_nothing(right)
        case ast.Call(function):
            return last_name(function) in {"new_zeros", "zeros", "zeros_like"}
    return False


def is_one_number(here: Surroundings, test: ast.expr, node: Node) -> bool:
    """Tell whether a reduction leaves one number, which alone has a truth when it is compared.

    Not so ``x.sum(-1, keepdim=True) == y``, which is a mistake, or never runs.
    """
    if node.op not in _REDUCED:
        return False
    given = dict(zip(operators.parameters(node.op) or (), node.args, strict=False))
    keeps = "keepdim" in given and given["keepdim"].value is True
    return not keeps and not here.facts(here.evaluations[id(test)], x=node).ndim("x")


def target_of(code: ast.stmt) -> ast.expr | None:
    """Return the tensor that a statement writes to in place."""
    match code:
        case ast.Assign([ast.Subscript(target, _)], _) | ast.AugAssign(ast.Subscript(target, _)):
            return target
        case ast.Expr(ast.Call(ast.Attribute(target, "masked_fill_"))):
            return target
    return None


def goes_on(here: Surroundings, code: ast.If | ast.IfExp) -> Proposal | None:
    """Return what to do about a branch that only the host can take."""
    if _REMEMBERS.search(here.text(code.test)):
        return Proposal(code, _IS_SAME)
    if _is_shorter_way(here, code):
        return None
    arms: list[ast.AST] = []
    arms += [code.body, code.orelse] if isinstance(code, ast.IfExp) else [*code.body, *code.orelse]
    if isinstance(code, ast.If) and isinstance(code.body[-1], ast.Return):
        arms += here.list_behind(code)
    return Proposal(code, _OF_NONE if _takes_loss_of_some(here, code.test, arms) else _GOES_ON)


def _is_shorter_way(here: Surroundings, code: ast.If | ast.IfExp) -> bool:
    """Tell whether one call takes the place of a loop: to compute both would take the longer way.

    ``if (starts == 0).all(): return lstm(x, state)``, and one step after the other behind it.
    """
    if isinstance(code, ast.IfExp):
        return False
    others: Sequence[ast.stmt] = code.orelse
    if isinstance(code.body[-1], ast.Return):
        others = here.list_behind(code)
    loops = [n for n in walk(*others) if isinstance(n, ast.For | ast.While)]
    inner = [n for loop in loops for n in walk(*loop.body)]
    return bool(_list_layers(walk(*code.body)) & _list_layers(inner))


def _list_layers(nodes: Iterable[ast.AST]) -> set[str]:
    """Return what may be a layer among what is called: ``lstm``, ``self.cell``."""
    calls = (ast.unparse(n.func) for n in nodes if isinstance(n, ast.Call))
    return {name for name in calls if re.fullmatch(r"(self\.)?\w+", name)} - {*dir(builtins)}


def _takes_loss_of_some(here: Surroundings, test: ast.expr, arms: Sequence[ast.AST]) -> bool:
    """Tell whether a mean is taken where anything counts: ``if (y == -100).all(): ...``."""
    asked = test.operand if isinstance(test, ast.UnaryOp) else test
    node = here.value(asked)
    tested = node.args[0] if node is not None and node.args else None
    if node is None or tested is None:
        return False
    of_labels = node.op in {"all", "any"} and tested.op in operators.COMPARISONS
    of_count = node.op in operators.COMPARISONS and any(
        arg.op in {"sum", "count_nonzero"}
        and arg.args[0].op in operators.COMPARISONS
        and other.value in {0, 1}
        for arg, other in zip(node.args, reversed(node.args), strict=True)
    )
    return (of_labels or of_count) and any(
        isinstance(inner, ast.Call)
        and _LOSS.fullmatch(last_name(inner.func) or "") is not None
        and not any(k.arg == "reduction" for k in inner.keywords)
        for inner in walk(*arms)
    )
