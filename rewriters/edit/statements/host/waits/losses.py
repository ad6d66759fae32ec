"""Numbers that losses divide by, and costs that an assignment on the host asks for."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.of_host import ARITHMETIC, is_tensor
from npufix.rewriters.graph.modules.syntax import last_name, nodes_of
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_TAKES_TENSOR = re.compile(r"loss|criterion", re.IGNORECASE)
"""What is called so divides by a number or a tensor; other calls make shapes of numbers."""
_NO_LOSS = re.compile(
    r"(^|_)(add|alert|append|check|coef\w*|factors?|format|history|key|log|logger|meter|monitor|names?"
    r"|notify|observe|plot|print|push|ratio|record|report|save|scales?|schedule\w*|send|set|spikes?"
    r"|track|types?|update|watch|weights?|write)(_|$)"
)
"""``log_loss`` and ``get_loss_weight`` do not."""
_LOSSES = re.compile(r"(^|_)loss(es)?(_|$)")
_FOR_EACH = re.compile(r"(^|_)(apply|map|vmap)$")
OF_ALL_LAYERS = (
    "the host waits for the costs of each call, to assign on the CPU: compute those of all decoder "
    "layers and images first, and copy them in one go (torch.stack(costs).cpu())"
)


def takes_tensor(user: Node, value: Node) -> bool:
    """Tell whether a call computes a loss with a number: ``self.get_loss(x, num_boxes)``.

    So does ``multi_apply(self.loss_single, xs, num_boxes=n)``, of each of several.
    """
    functions = [user.args[0]]
    if _FOR_EACH.search(str(user.args[0].value or "").rpartition(".")[2]):
        functions += [a for a in user.args[1:2] if a.op in {Op.ATTR, Op.GLOBAL}]
    called = [str(node.value or "").rpartition(".")[2] for node in functions]
    of_loss = any(
        _TAKES_TENSOR.search(name) and not (name[:1].isupper() or _NO_LOSS.search(name))
        for name in called
    )
    return value not in functions and of_loss


def only_divides(here: Surroundings, value: Node) -> bool:
    """Tell whether losses alone get a number, or what arithmetic makes of it.

    ``num_boxes = num_boxes * groups``, and then ``self.get_loss(outputs, num_boxes)``.
    """
    stack, seen, given = [value], {value}, False
    while stack:
        made = stack.pop()
        if any(o.node is made for o in here.flow.observables):
            return False
        for user in here.users(made):
            if user.op == Op.CALL:
                if not takes_tensor(user, made):
                    return False
                given = True
            elif user.op in {*ARITHMETIC, Op.PHI} and user not in seen:
                seen.add(user)
                stack.append(user)
            elif user not in seen:
                return False
    return given


def is_for_loss_of_round(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether losses of the same round alone get a number, limited perhaps.

    ``n = heatmaps[i].eq(1).sum().item()``, and then ``self.loss_cls(x, y, avg_factor=max(n, 1))``.
    """
    value = here.value(code)
    todo: list[Node] = [] if value is None else [value]
    given = False
    for made in todo:  # grows
        if any(o.node is made for o in here.flow.observables):
            return False
        for user in here.users(made):
            if user.op == Op.CALL and takes_tensor(user, made):
                given = True
            elif user.op in {*ARITHMETIC, "py:max", "py:min"}:
                todo += [] if user in todo else [user]
            else:
                return False
    return given


def is_assigned(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether ``scipy`` assigns by what is copied: ``linear_sum_assignment(cost.cpu())``."""
    if here.flow.cls is None:
        return False
    names = set[str]()
    statement = here.statement_of(code)
    if isinstance(statement, ast.Assign):
        names = {t.id for t in statement.targets if isinstance(t, ast.Name)}
    calls = (n for n in here.nodes if isinstance(n, ast.Call))
    for call in calls:
        if last_name(call.func) == "linear_sum_assignment":
            whole = here.statement_of(call)
            inside = [n for n in ast.walk(whole) if n is code or isinstance(n, ast.Name)]
            if any(n is code or getattr(n, "id", "") in names for n in inside):
                return True
    return False


def is_met(here: Surroundings, code: ast.Call, tensor: ast.expr) -> bool:
    """Tell whether a round computes with a number where it reads it: ``x / x.trace().item()``."""
    match here.parents.get(id(code)):
        case ast.BinOp(left, _, right) if isinstance(tensor, ast.Call):
            other = here.value(right if left is code else left)
            return other is not None and is_tensor(here, other)
    return False


def divides_each(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether all that a number is for is to divide, or weigh, each loss of several.

    ``n = count.item()``, and then ``list(map(lambda x: x / n, losses))``, ``[x / n for x in
    losses]`` or ``losses[i] = losses[i] / n``, also where nothing tells that those are tensors.
    """
    bound = here.statement_of(code)
    match bound:
        case ast.Assign([ast.Name(name)], value) if value is code and here.loop_of(bound) is None:
            pass
        case _:
            return False
    if bound not in here.flow.function.body:
        return False  # another branch may have given the name something else
    names = [n for n in nodes_of(here.flow.function) if isinstance(n, ast.Name) and n.id == name]
    later = [n for n in names if n.lineno > (bound.end_lineno or bound.lineno)]
    return bool(later) and all(
        isinstance(n.ctx, ast.Load) and _divides_loss(here, n) for n in later
    )


def _divides_loss(here: Surroundings, name: ast.Name) -> bool:
    divided, *around = here.around(name)
    match divided:
        case ast.BinOp(ast.Subscript(ast.Name(of)), ast.Div() | ast.Mult(), by) if by is name:
            return _LOSSES.search(of) is not None
        case ast.BinOp(ast.Name(one), ast.Div() | ast.Mult(), by) if by is name:
            pass
        case _:
            return False
    match around:
        case [ast.ListComp(_, [ast.comprehension(ast.Name(each), ast.Name(of))]), *_]:
            return each == one and _LOSSES.search(of) is not None
        case [
            ast.Lambda(ast.arguments(args=[ast.arg(each)])),
            ast.Call(ast.Name("map"), [_, ast.Name(of)]),
            *_,
        ]:
            return each == one and _LOSSES.search(of) is not None
    return False
