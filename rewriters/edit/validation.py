"""Translation validation: a changed function computes what the original did, the match aside."""

from __future__ import annotations

import ast
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.site import IN_BETWEEN
from npufix.rewriters.edit.spelling import replacement_node
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.canonical import arithmetic
from npufix.rewriters.graph.nodes import Comparison, Node, Resemblance
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.nodes import Evaluation, Observable
    from npufix.rewriters.match.matching import Match
    from npufix.rules.substitution import Form

# Values that cost nothing on the device; they may stay when the code around them goes.
_FREE = frozenset(
    {"attr", "const", "dtype", "dtype_of", "global", "item", "list", "param", "rank", "shape",
     "size", "slice", "tuple", "cast"}
)  # fmt: skip
_OF_SHAPES = frozenset({Op.DTYPE_OF, Op.RANK, Op.SHAPE, Op.SIZE})
"""What reads no element of a tensor, which somebody else may then compute in vain."""
_INDEX = frozenset({Op.CONST, Op.SLICE, Op.TUPLE})
"""What an index that makes a view is made of."""
_DEAR = operators.PRODUCTS | {Op.CALL}
"""What must not run twice for one result."""


def difference(new: FunctionFlow, flow: FunctionFlow, match: Match, form: Form) -> str | None:
    """Return how the new function differs from the expected one, ``None`` if it does not."""
    root = match.evaluation.node
    wanted = replacement_node(form.replacement, flow, match)

    exchanged = _exchanging(flow, root, wanted)
    # The replacement draws the random numbers of the operators that it takes the place of.
    expected = [
        _exchange(o, exchanged)
        for o in flow.observables
        if not (o.kind == "random" and o.node in match.covered)
    ]
    compared = Comparison()
    if not _same(expected, new.observables, compared):
        return "a value that would be replaced is used elsewhere in the function"
    writes = [o.node for o in new.observables if o.kind == "write"]
    if any(compared.same_term(wanted, n) and not new.is_certain(n) for n in writes):
        return "what is written to would be another tensor of the same value"
    if _runs_twice(new, flow):
        return "a call whose result has a name already would run twice"
    # What the fused operator computes must not be computed beside it once more.
    read = wanted.walk(lambda node: () if node.op in _OF_SHAPES else node.args)
    needed = {node for node in read if node.op not in operators.PRODUCTS}
    if wanted.op == root.op and {*wanted.args} == {*root.args}:
        needed -= {*root.args}  # ``addcmul`` is read as the sum that it computes
    needed |= {e.node for e in flow.evaluations if _is_apart(e, match.evaluation)}
    kept = [n for n in match.covered - needed if n is not root and not _is_free(n)]
    marks = Resemblance()
    likely: dict[int, list[Node]] = {}
    for node in kept:
        likely.setdefault(marks.mark(node), []).append(node)
    for node in (evaluation.node for evaluation in new.evaluations):
        if any(Comparison.once(n, node) for n in likely.get(marks.mark(node), ())):
            return IN_BETWEEN
    return None


def _exchanging(flow: FunctionFlow, root: Node, wanted: Node) -> Callable[[Node], Node]:
    """Return what puts another value in the place of one, and reads what is made of it anew."""

    def exchange(node: Node) -> Node | None:
        if node is root:
            return wanted
        if root in node.args and node.value is None:  # ``x.sum(-1)[..., None]`` is one operator
            return arithmetic(flow.graph, node.op, [*map(exchanged, node.args)], node.epoch)
        return None

    exchanged = flow.graph.substitution(exchange)
    return exchanged


def _is_free(node: Node) -> bool:
    """Tell whether nothing is launched for a value: ``freqs[..., 0]``, which query and key read."""
    index = node.args[1].walk() if node.op == Op.GETITEM else ()
    return node.op in _FREE or (node.op == Op.GETITEM and all(n.op in _INDEX for n in index))


def _runs_twice(new: FunctionFlow, flow: FunctionFlow) -> bool:
    """Tell whether modules are called, or matrices multiplied, again for what is there already."""
    before, after = _dear(flow), _dear(new)
    if Counter(n.op for n in after) <= Counter(n.op for n in before):
        return False
    marks = Resemblance()

    def repeated(nodes: Sequence[Node]) -> int:
        return len(nodes) - len({(n.op, *map(marks.mark, n.args)) for n in nodes})

    return repeated(after) > repeated(before)


def _dear(flow: FunctionFlow) -> list[Node]:
    return [
        e.node
        for e in flow.evaluations
        if isinstance(e.code, (ast.Call, ast.BinOp))
        and (e.node.op in _DEAR or e.node.op.startswith("module:"))
    ]


def computes_the_same(new: FunctionFlow, flow: FunctionFlow) -> bool:
    """Tell whether a function that is written in another way does what it did."""
    return _same(flow.observables, new.observables, Comparison())


def _same(
    expected: Sequence[Observable], found: Sequence[Observable], compared: Comparison
) -> bool:
    return len(expected) == len(found) and all(
        a.kind == b.kind
        and compared.same_term(a.node, b.node)
        and len(a.path) == len(b.path)
        and all(
            x[1] == y[1] and compared.same_term(x[0], y[0])
            for x, y in zip(a.path, b.path, strict=True)
        )
        for a, b in zip(expected, found, strict=True)
    )


def _is_apart(evaluation: Evaluation, root: Evaluation) -> bool:
    """Tell whether code in a block that does not hold the match computes a value for itself."""
    if isinstance(evaluation.code, ast.Name) or evaluation.block is root.block:
        return False
    last = evaluation.block[-1]
    first = evaluation.block[0].lineno
    return not first <= root.statement.lineno <= (last.end_lineno or last.lineno)


def _exchange(observable: Observable, exchanged: Callable[[Node], Node]) -> Observable:
    path = tuple((exchanged(node), side) for node, side in observable.path)
    return replace(observable, node=exchanged(observable.node), path=path)


def unbound(new: FunctionFlow, names: Sequence[str]) -> str | None:
    """Return what is wrong if a name that is bound no more is read, be it for nothing."""
    leaves = {("global", new.names.imports.get(name, name)): name for name in names}
    leaves |= {("unset", name): name for name in names}
    if not any(new.graph.has(*leaf) for leaf in leaves):
        return None
    # What two branches leave behind may never be read.
    uses = [e.node for e in new.evaluations if not isinstance(e.code, ast.If)]
    read = {(n.op, n.value) for node in uses for n in node.walk()}
    lost = [name for leaf, name in leaves.items() if leaf in read]
    return f"{lost[0]} is read elsewhere in the function" if lost else None
