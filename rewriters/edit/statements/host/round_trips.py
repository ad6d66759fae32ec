"""Tensors that go to the host and come back: nothing but the way there needs the host."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.of_host import ARITHMETIC, ON_HOST, is_tensor
from npufix.rewriters.edit.statements.proposal import Proposal, put
from npufix.rewriters.facts.host_tensors import is_made_on_host, is_move_to_device
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_PASSES_ON = frozenset({Op.CAST, Op.COMPARE, Op.GETITEM, Op.ITEM, Op.PHI})
"""What makes something else of a tensor that is on the host as well."""
_OF_HOST = re.compile(r"(cv2|lap|PIL|scipy|skimage|sklearn)\b|\w*(assignment|hungarian)")
"""Packages for which the device has nothing: ``scipy.optimize.linear_sum_assignment``."""
_BY_NUMPY = (
    "the host waits for the tensor, and NumPy computes with it in each call: compute it on the "
    "device with torch"
)
_ABOUT = frozenset({Op.DTYPE_OF, Op.RANK, Op.SHAPE, Op.SIZE})


def comes_back(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether all that is made of a tensor on the host is moved to the device again.

    ``self.drop(x.cpu()).npu()``; ``a, b = assign(x.cpu())``, then ``a.to(d)`` and ``b.to(d)``.
    """
    value = here.value(code)
    if value is None or not _ends_on_device(here, value):
        return _is_moved_at_once(here, code)
    return True


def _is_moved_at_once(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether what a call makes of it is moved, be it followed or not."""
    outer = here.parents.get(id(code))
    match outer, here.parents.get(id(outer)):
        case ast.Call(ast.Attribute()), ast.Attribute(attr="npu" | "cuda" | "to"):
            return code in outer.args
    return False


def _ends_on_device(here: Surroundings, value: Node) -> bool:
    """Tell whether every way from a value ends in a move to a device, and there is one."""
    effects = operators.RANDOM | {Op.CALL}  # which are there for more than what they return
    seen = {o.node for o in here.flow.observables if o.node.op not in effects}
    todo, moved = [value], False
    for node in todo:  # grows
        if node in seen:
            return False  # somebody else gets it as it is
        users = [user for user in here.users(node) if user.op not in _ABOUT]
        if not users and node.op not in {Op.CALL, Op.ITEM, Op.PHI}:
            return False  # perhaps the host looks at it where nothing is followed
        for user in users:
            moves = is_move_to_device(user) and node is user.args[0]
            if moves or (user.op == "item" and _meets_device(here, user, value.args[0])):
                moved = True
            elif not _passes_on(user):
                return False
            elif user not in todo:
                todo.append(user)
    return moved


def _meets_device(here: Surroundings, number: Node, whole: Node) -> bool:
    """Tell whether a number that is read there is only computed with, or compared, on the device.

    ``limit = x.cpu().kthvalue(n).values``, and then ``x >= limit.item()``.
    """
    users = here.users(number)
    meets = (arg for user in users for arg in user.args if arg is not number)
    takes = all(user.op in ARITHMETIC | operators.COMPARISONS for user in users)
    return bool(users) and takes and all(arg is whole or is_tensor(here, arg) for arg in meets)


def _passes_on(user: Node) -> bool:
    """Tell whether a value makes another one of a tensor, which the device could as well."""
    if user.op == Op.CALL:
        return _OF_HOST.match(str(user.args[0].value)) is None
    return user.op in operators.TABLE or user.op in _PASSES_ON


def computed_by_numpy(here: Surroundings, code: ast.expr) -> Proposal | None:
    """Return what to do where ``forward`` goes on with an array: ``x.cpu().numpy().astype(int)``.

    What another library gets may compute what the device cannot.
    """
    outer = here.parents.get(id(code))
    computes = isinstance(outer, ast.Attribute | ast.Assign | ast.BinOp | ast.Subscript)
    in_layer = here.flow.cls is not None and here.flow.function.name == "forward"
    if not (computes and in_layer) or here.loop_of(code) is not None:
        return None
    if isinstance(outer, ast.Assign) and _is_handed_on(here, outer):
        return None
    return Proposal(code, _BY_NUMPY)


def _is_handed_on(here: Surroundings, made: ast.Assign) -> bool:
    """Tell whether others than NumPy get an array: ``interpreter.set_tensor(0, x)``."""
    names = {target.id for target in made.targets if isinstance(target, ast.Name)}
    for use in here.nodes:
        if not (isinstance(use, ast.Name) and use.id in names):
            continue
        if isinstance(call := here.holder_of(use), ast.Call):
            called = here.flow.names.dotted(call.func) or ast.unparse(call.func)
            if not called.startswith("numpy.") and called != "len":
                return True
    return False


def pick_there(here: Surroundings, code: ast.Call, tensor: ast.expr) -> Proposal | None:
    """Return an index that stays on the device: ``k`` of ``k = k.cpu()``, then ``y[k]``.

    Nothing else is done with it, but to count how many places it has. A list of integers picks what
    the tensor does that it was.
    """
    value = here.value(code)
    if last_name(code.func) == "tolist" and not _picks_as_list(here, tensor, value):
        return None
    users = [] if value is None else here.users(value)
    pairs = [u for u in users if u.op == Op.TUPLE]
    users = [u for u in users if u.op != Op.TUPLE] + [w for u in pairs for w in here.users(u)]
    picking = [u for u in users if u.op == Op.GETITEM and u.args[0] is not value]
    counting = {"numel", "py:len", Op.SHAPE, Op.SIZE}
    if not picking or any(u not in picking and u.op not in counting for u in users):
        return None
    owners = [user.args[0] for user in picking]
    on_host = any(is_made_on_host(o) or any(p.op in ON_HOST for p in o.walk()) for o in owners)
    if on_host or not all(o.op == Op.CAST or is_tensor(here, o) for o in owners):
        return None
    if any(o.node is value or o.node in pairs for o in here.flow.observables):
        return None  # somebody else gets it
    text = here.text(tensor)
    return put(
        here,
        code,
        text,
        form="picked",
        asked=(("x", text),),
        proven={"is-tensor"} if here.is_tensor(tensor) else (),
    )


def _picks_as_list(here: Surroundings, tensor: ast.expr, value: Node | None) -> bool:
    """Tell whether a list of integers picks what the tensor does that it was made of.

    Rows that are all of an index are one for each dimension: ``y[[[0, 1], [2, 3]]]``.
    """
    at = here.evaluations.get(id(tensor))
    if at is None or value is None:
        return False
    facts = here.facts(at, x=at.node)
    alone = any(u.op == Op.GETITEM and value in u.args[1:] for u in here.users(value))
    return facts.dtype("x") in {"bool", "int64"} and (not alone or facts.ndim("x") == 1)
